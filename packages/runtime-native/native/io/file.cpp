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

/// Most attempts of a block that may end with EAGAIN.
constexpr uint32_t kMaxAgain = 100;

std::string in_words(int error) { return std::generic_category().message(error); }

/// Opens the file of `fd` again, so that flags are not shared with the caller. On failure errno says why.
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
  buffered_ = reopen(fd, access);
#ifdef POSIX_FADV_RANDOM
  // No readahead, which would bring in pages that no read accounts for.
  if (buffered_) posix_fadvise(buffered_.get(), 0, 0, POSIX_FADV_RANDOM);
#endif
  // Where the file may not be opened again, the descriptor is shared.
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

IoAttempt IoFile::next(IoBlock& block) {
  IoAttempt rest{-1, block.offset + block.done,
                 static_cast<uint32_t>(std::min(block.length - block.done, kMaxAttempt)), block.data + block.done};
  const uint64_t all = rest.offset | rest.length | reinterpret_cast<uintptr_t>(rest.data);
  block.direct = direct() && !block.refused && all % kIoAlign == 0;
  block.attempts++;
  rest.fd = block.direct ? direct_file_.get() : buffered_.get();
  if (block.kind == IoRequest::Kind::write) {
    own_.store(true, std::memory_order_relaxed);
  } else if (!block.direct) {
    rest.length = static_cast<uint32_t>(std::min<uint64_t>(rest.length, PagesRead::kMostBytes));
    if (own_.load(std::memory_order_relaxed)) {
      block.pages.before_own(rest.offset, rest.length);
    } else {
      block.pages.before(rest.fd, rest.offset, rest.length);
    }
  }
  return rest;
}

std::optional<int> IoFile::settle(IoBlock& block, int64_t answer) {
  block.pages.after(buffered_.get());
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
  if (answer > 0) block.done += static_cast<uint64_t>(answer);
  const bool complete = block.done >= block.needed;
  if (answer > 0 && !complete) return std::nullopt;
  if (answer < 0) return static_cast<int>(-answer);
  if (complete) return 0;
  return block.kind == IoRequest::Kind::read ? Transfer::kEarlyEnd : EIO;
}

void IoFile::give_up_direct(int error) {
  const std::lock_guard lock(mutex_);
  if (!direct_.exchange(false)) return;
  reason_ = "direct I/O: refused by a read or write: " + in_words(error);
}

}  // namespace cflow
