#include "page_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>

namespace cflow {

#ifdef POSIX_FADV_DONTNEED

namespace {

const uint64_t page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));

}  // namespace

void PagesRead::cover(uint64_t offset, uint64_t length) {
  first_ = offset / page_bytes;
  pages_ = static_cast<size_t>((offset + length + page_bytes - 1) / page_bytes - first_);
}

void PagesRead::before_own(uint64_t offset, uint64_t length) {
  cover(offset, length);
  cached_.reset();
}

void PagesRead::before(int fd, uint64_t offset, uint64_t length) {
  cover(offset, length);
  cached_.set();
  std::array<unsigned char, kMostPages> cached;
  const size_t bytes = pages_ * page_bytes;
  void* const mapping = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, fd, static_cast<off_t>(first_ * page_bytes));
  if (mapping == MAP_FAILED) return;
  if (mincore(mapping, bytes, cached.data()) == 0) {
    for (size_t i = 0; i < pages_; i++) cached_[i] = cached[i] & 1;
  }
  munmap(mapping, bytes);
}

void PagesRead::after(int fd) {
  for (size_t end = 0; end < pages_; end++) {
    const size_t begin = end;
    while (end < pages_ && !cached_[end]) end++;
    if (begin == end) continue;
    posix_fadvise(fd, static_cast<off_t>((first_ + begin) * page_bytes), static_cast<off_t>((end - begin) * page_bytes),
                  POSIX_FADV_DONTNEED);
  }
  pages_ = 0;
}

#else

void PagesRead::before(int, uint64_t, uint64_t) {}
void PagesRead::before_own(uint64_t, uint64_t) {}
void PagesRead::after(int) {}

#endif

}  // namespace cflow
