#include "file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

namespace cflow {

namespace {

/// Linux moves no more than this at once anyway.
constexpr uint64_t kMaxAttempt = uint64_t{1} << 30;

/// So often the system may say that it has no means just now.
constexpr uint32_t kMaxAgain = 100;

std::string in_words(int error) { return std::generic_category().message(error); }

/// Another open file on what `fd` is open on, so that flags are its own. None: errno says why not.
Descriptor reopen(int fd, int flags) {
#ifdef __linux__
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return Descriptor(open(path.c_str(), flags | O_CLOEXEC));
#else
  (void)flags;
  return Descriptor::copy(fd);
#endif
}

}  // namespace

IoFile::IoFile(int fd, IoMode mode) {
  const int flags = fcntl(fd, F_GETFL);
  struct stat info{};
  if (flags < 0 || fstat(fd, &info) != 0) throw Error("NOT_READABLE", "the file cannot be used: " + in_words(errno));
  size_ = static_cast<uint64_t>(info.st_size);
  const int access = flags & O_ACCMODE;
  // Where the file may not be opened again, the descriptor is shared.
  buffered_ = reopen(fd, access);
  if (!buffered_) buffered_ = Descriptor::copy(fd);
  if (!buffered_) throw Error("NOT_READABLE", "the file cannot be opened again: " + in_words(errno));
  if (mode == IoMode::buffered) {
    reason_ = "direct I/O: buffered was asked for";
    return;
  }
#if defined(__linux__) && defined(O_DIRECT)
  direct_file_ = reopen(fd, access | O_DIRECT);
  direct_ = static_cast<bool>(direct_file_);
  if (!direct_) reason_ = "direct I/O: refused when the file was opened: " + in_words(errno);
#else
  reason_ = "direct I/O: only on Linux";
#endif
}

std::string IoFile::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

IoAttempt IoFile::next(IoBlock& block) const {
  const IoAttempt rest{-1, block.offset + block.done,
                       static_cast<uint32_t>(std::min(block.length - block.done, kMaxAttempt)),
                       block.data + block.done};
  const uint64_t all = rest.offset | rest.length | reinterpret_cast<uintptr_t>(rest.data);
  block.direct = direct() && !block.refused && all % kIoAlign == 0;
  block.cached |= !block.direct;
  block.attempts++;
  return {block.direct ? direct_file_.get() : buffered_.get(), rest.offset, rest.length, rest.data};
}

std::optional<int> IoFile::settle(IoBlock& block, int64_t answer) {
  if (answer == -EINTR) return std::nullopt;
  if (answer == -EAGAIN && block.again++ < kMaxAgain) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return std::nullopt;
  }
  if (answer == -EINVAL && block.direct) {
    give_up_direct(EINVAL);
    block.refused = true;
    return std::nullopt;
  }
  const bool read = block.kind == IoRequest::Kind::read;
  if (answer > 0) block.done += static_cast<uint64_t>(answer);
  const bool complete = block.done >= block.needed;
  if (answer > 0 && !complete) return std::nullopt;
  if (read && block.cached) forget(block);
  if (answer < 0) return static_cast<int>(-answer);
  if (complete) return 0;
  return read ? Transfer::kEarlyEnd : EIO;
}

void IoFile::give_up_direct(int error) {
  const std::lock_guard lock(mutex_);
  if (!direct_.exchange(false)) return;
  reason_ = "direct I/O: refused by a read or write: " + in_words(error);
}

void IoFile::forget(const IoBlock& block) const {
#ifdef POSIX_FADV_DONTNEED
  // Whole pages only are forgotten.
  const uint64_t first = block.offset / kIoAlign * kIoAlign;
  const uint64_t end = align_io(block.offset + block.length);
  posix_fadvise(buffered_.get(), static_cast<off_t>(first), static_cast<off_t>(end - first), POSIX_FADV_DONTNEED);
#else
  (void)block;
#endif
}

}  // namespace cflow
