// What the machine has left, read from trees of files made here.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "../base/memory.h"

using namespace cflow;

namespace {

int checks = 0;

void check(uint64_t found, uint64_t expected, const char* what) {
  checks++;
  if (found == expected) return;
  std::fprintf(stderr, "memory-test: FAILED: %s: %llu, not %llu\n", what, static_cast<unsigned long long>(found),
               static_cast<unsigned long long>(expected));
  std::exit(1);
}

/// A root directory that is removed again.
class Tree {
 public:
  Tree() {
    char name[] = "/tmp/cflow-memory-XXXXXX";
    if (!mkdtemp(name)) std::exit(1);
    root = name;
  }
  ~Tree() { std::filesystem::remove_all(root); }
  void put(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void v1(const std::string& group, const char* limit, const char* usage) const {
    put("/sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes", limit);
    put("/sys/fs/cgroup/memory" + group + "/memory.usage_in_bytes", usage);
    put("/sys/fs/cgroup/memory" + group + "/memory.stat", "cache 70\ninactive_file 30\n");
  }
  std::string root;
};

void test_v1() {
  const Tree tree;
  check(available_memory(tree.root), UINT64_MAX, "nothing says anything");
  tree.put("/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   5000 kB\n");
  check(available_memory(tree.root), 5000 * 1024, "the system");
  tree.put("/proc/self/cgroup", "5:cpu,cpuacct:/other\n4:hugetlb,memory:/outer/inner\n0::/\n");
  tree.v1("/outer/inner", "9223372036854771712", "500");
  check(available_memory(tree.root), 5000 * 1024, "a group without a limit");
  tree.v1("/outer", "4000", "1000");
  check(available_memory(tree.root), 3030, "the group above; its inactive files can be evicted");
  tree.v1("/outer/inner", "2000", "500");
  check(available_memory(tree.root), 1530, "the group itself");
  tree.v1("", "1000", "2000");
  check(available_memory(tree.root), 0, "the root; more is used than allowed");
}

void test_v2() {
  const Tree tree;
  tree.put("/proc/meminfo", "MemAvailable: 5000 kB\n");
  tree.put("/proc/self/cgroup", "0::/user.slice/run.scope\n");
  tree.put("/sys/fs/cgroup/user.slice/run.scope/memory.max", "max\n");
  tree.put("/sys/fs/cgroup/user.slice/run.scope/memory.current", "10\n");
  check(available_memory(tree.root), 5000 * 1024, "max is no limit");
  tree.put("/sys/fs/cgroup/user.slice/memory.max", "900\n");
  tree.put("/sys/fs/cgroup/user.slice/memory.current", "100\n");
  check(available_memory(tree.root), 800, "a slice");
  // In a container the path is the host's, and the root of the mount is the group itself.
  tree.put("/proc/self/cgroup", "0::/not/visible\n");
  tree.put("/sys/fs/cgroup/memory.max", "700\n");
  tree.put("/sys/fs/cgroup/memory.current", "100\n");
  check(available_memory(tree.root), 600, "the root of a container");
}

}  // namespace

int main() {
  test_v1();
  test_v2();
  std::printf("memory-test: %d checks\n", checks);
  return 0;
}
