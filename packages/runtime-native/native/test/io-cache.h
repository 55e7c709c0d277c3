// Buffered reads beside others who use the page cache: part of io-test.
#pragma once

#include <sys/mman.h>

#include "io-check.h"

namespace io_test {

inline constexpr uint64_t kCachePages = 256, kCacheBytes = kCachePages * 4096;

/// Which pages of a file are cached; '#' is one that is.
inline std::string cached_pages(int fd) {
  void* const mapping = mmap(nullptr, kCacheBytes, PROT_READ, MAP_SHARED, fd, 0);
  std::vector<unsigned char> pages(kCachePages);
  check(mapping != MAP_FAILED && mincore(mapping, kCacheBytes, pages.data()) == 0, "residency of a file");
  munmap(mapping, kCacheBytes);
  std::string shown;
  for (const unsigned char page : pages) shown += page & 1 ? '#' : '.';
  return shown;
}

inline const std::string kNoPages(kCachePages, '.');

/// A file with these pages cached and no others. Empty: the file system keeps all in memory.
inline std::string cache(const File& file, const std::vector<std::pair<uint64_t, uint64_t>>& ranges) {
#ifdef POSIX_FADV_DONTNEED
  fsync(file.fd);
  posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED);
  if (cached_pages(file.fd) != kNoPages) return "";
  posix_fadvise(file.fd, 0, 0, POSIX_FADV_RANDOM);
  Memory memory(kCacheBytes);
  for (const auto& [first, count] : ranges) {
    const auto bytes = static_cast<ssize_t>(count * 4096);
    check(pread(file.fd, memory.data, count * 4096, static_cast<off_t>(first * 4096)) == bytes, "caching pages");
  }
  return cached_pages(file.fd);
#else
  (void)file, (void)ranges;
  return "";
#endif
}

inline void test_page_cache() {
  for (const Arm& arm : arms(64 << 10, 3)) {
    if (arm.options.mode != IoMode::buffered) continue;
    const File file(kCacheBytes);
    const auto queue = IoQueue::open(file.fd, arm.options);
    Memory memory(kCacheBytes);
    using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;
    for (const Ranges& ranges : {Ranges{{0, kCachePages}}, Ranges{{0, 10}, {15, 1}, {17, 1}, {100, 64}, {250, 6}}, Ranges{}}) {
      const std::string before = cache(file, ranges);
      if (before.empty()) return;
      for (const auto& [offset, length] : Ranges{{0, kCacheBytes}, {64 << 10, 64 << 10}, {5000, 200'000}, {4095, 2}}) {
        check(read_now(*queue, std::vector{read_of(offset, length, memory.data)}) == 0, arm.name + "a buffered read");
        check(right(memory.data, offset, length), arm.name + "bytes of a buffered read");
        check(cached_pages(file.fd) == before, arm.name + "a read leaves the page cache as it was\n" + before + "\n" +
                                                   cached_pages(file.fd));
      }
    }
    // What is written through the queue is read by nobody else.
    Transfer transfer;
    queue->submit(transfer, std::vector{IoRequest{IoRequest::Kind::write, 0, kCacheBytes, memory.data}}, IoPriority::spill);
    IoQueue::wait(transfer);
    fsync(file.fd);
    check(cached_pages(file.fd) != kNoPages, arm.name + "a written file is cached");
    check(read_now(*queue, std::vector{read_of(0, kCacheBytes, memory.data)}) == 0, arm.name + "reading it back");
    check(cached_pages(file.fd) == kNoPages, arm.name + "and not any more when it was read back");
  }
}

}  // namespace io_test
