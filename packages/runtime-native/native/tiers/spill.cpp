#include "spill.h"

#include <fcntl.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/magic.h>
#include <sys/vfs.h>
#endif

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace cflow {

SpillStats& SpillStats::operator+=(const SpillStats& other) {
  bytes_written += other.bytes_written;
  bytes_read += other.bytes_read;
  stall_seconds += other.stall_seconds;
  busy_seconds += other.busy_seconds;
  if (!other.reason.empty()) reason = other.reason;
  return *this;
}

SpillStats SpillStats::operator-(const SpillStats& other) const {
  return {bytes_written - other.bytes_written, bytes_read - other.bytes_read, stall_seconds - other.stall_seconds,
          busy_seconds - other.busy_seconds, reason};
}

namespace {

/// -1: errno says why not.
int open_nameless(const std::string& directory) {
#ifdef O_TMPFILE
  const int fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
#endif
  std::string name = directory + "/cflow-spill-XXXXXX";
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named < 0) return -1;
  unlink(name.c_str());
  return named;
}

}  // namespace

SpillFile::SpillFile(const std::string& directory) : fd_(open_nameless(directory)) {
  if (fd_ >= 0) return;
  throw Error("WRITE_FAILED",
              "cannot make a file for keys and values in " + directory + ": " + std::generic_category().message(errno),
              "name another directory, or allow more memory for keys and values");
}

SpillFile::~SpillFile() { close(fd_); }

bool SpillFile::in_memory() const {
#ifdef __linux__
  struct statfs system = {};
  return fstatfs(fd_, &system) == 0 && system.f_type == TMPFS_MAGIC;
#else
  return false;
#endif
}

}  // namespace cflow
