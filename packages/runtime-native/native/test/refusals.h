// Refuses memory and threads: operator new, mmap and pthread_create of the whole program, counted together. For one unit
// of a test program.
#pragma once

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

namespace refusals {

/// Calls so far; those from `first` on and before `end` are refused.
inline std::atomic<long> calls{0};
inline std::atomic<long> first{0}, end{0};

/// Refuses call number `n` of those to come, or that and all that follow.
inline void arm(long n, bool lasting) {
  const long next = calls.load() + n;
  end = lasting ? __LONG_MAX__ : next + 1;
  first = next;
}
inline void disarm() {
  first = __LONG_MAX__;
  end = 0;
}

inline bool refused() {
  const long call = calls.fetch_add(1, std::memory_order_relaxed);
  return call >= first.load(std::memory_order_relaxed) && call < end.load(std::memory_order_relaxed);
}

inline void* allocate(std::size_t bytes, std::size_t align) noexcept {
  if (refused()) return nullptr;
  return align ? std::aligned_alloc(align, (bytes + align - 1) / align * align) : std::malloc(bytes ? bytes : 1);
}

inline void* require(void* at) {
  if (!at) throw std::bad_alloc();
  return at;
}

template <typename Function>
Function* original(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace refusals

void* operator new(std::size_t bytes) { return refusals::require(refusals::allocate(bytes, 0)); }
void* operator new(std::size_t bytes, std::align_val_t align) {
  return refusals::require(refusals::allocate(bytes, static_cast<std::size_t>(align)));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return refusals::allocate(bytes, 0); }
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }

extern "C" __attribute__((visibility("default"))) void* mmap(void* at, std::size_t bytes, int protection, int flags, int fd,
                                                             off_t offset) noexcept {
  // Over what is mapped already: no new memory.
  if (!(flags & MAP_FIXED) && refusals::refused()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  static auto* const real = refusals::original<decltype(mmap)>("mmap");
  return real(at, bytes, protection, flags, fd, offset);
}

extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                                                     void* (*body)(void*), void* argument) noexcept {
  if (refusals::refused()) return EAGAIN;
  static auto* const real = refusals::original<decltype(pthread_create)>("pthread_create");
  return real(thread, attributes, body, argument);
}
