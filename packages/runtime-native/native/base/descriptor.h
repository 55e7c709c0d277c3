// A file descriptor that is closed with its owner. All of them close on exec: a child process inherits none.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace cflow {

class Descriptor {
 public:
  Descriptor() = default;
  /// Takes over `fd`; negative = none.
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }

  /// Another descriptor of what `fd` is open on; none, with errno, if the system refuses it.
  static Descriptor copy(int fd) { return Descriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace cflow
