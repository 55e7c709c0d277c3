#include "ring.h"

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif

// As old as IORING_OP_READ, which is no macro.
#ifdef IORING_FEAT_RW_CUR_POS
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

namespace cflow {

namespace {

int enter_ring(int fd, uint32_t submit, uint32_t wait) {
  return static_cast<int>(
      syscall(__NR_io_uring_enter, fd, submit, wait, wait ? IORING_ENTER_GETEVENTS : 0u, nullptr, 0));
}

uint32_t load(const uint32_t* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
void store(uint32_t* at, uint32_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }

void* map(int fd, size_t bytes, off_t what) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);
  return at == MAP_FAILED ? nullptr : at;
}

}  // namespace

std::unique_ptr<Ring> Ring::create(unsigned entries, std::string& reason) {
  std::unique_ptr<Ring> ring(new Ring);
  const char* failed = ring->open(entries);
  if (!failed) return ring;
  reason = std::string("io_uring: ") + failed + ": " + std::generic_category().message(errno);
  return nullptr;
}

const char* Ring::open(unsigned entries) {
  io_uring_params params{};
  fd_ = static_cast<int>(syscall(__NR_io_uring_setup, entries, &params));
  if (fd_ < 0) return "the kernel refused it";
  if (!(params.features & IORING_FEAT_SINGLE_MMAP) || !supports_transfers()) {
    errno = ENOSYS;
    return "this kernel's is too old";
  }
  queues_bytes_ = std::max<size_t>(params.sq_off.array + params.sq_entries * sizeof(uint32_t),
                                   params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
  queues_ = static_cast<uint8_t*>(map(fd_, queues_bytes_, IORING_OFF_SQ_RING));
  entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
  entries_ = map(fd_, entries_bytes_, IORING_OFF_SQES);
  if (!queues_ || !entries_) return "its memory was refused";
  const auto word = [this](uint32_t offset) { return reinterpret_cast<uint32_t*>(queues_ + offset); };
  sq_head_ = word(params.sq_off.head);
  sq_tail_ = word(params.sq_off.tail);
  cq_head_ = word(params.cq_off.head);
  cq_tail_ = word(params.cq_off.tail);
  sq_mask_ = *word(params.sq_off.ring_mask);
  cq_mask_ = *word(params.cq_off.ring_mask);
  answers_ = queues_ + params.cq_off.cqes;
  // Entry i of the queue is always operation i.
  for (uint32_t i = 0; i < params.sq_entries; i++) word(params.sq_off.array)[i] = i;
  // A sandbox may allow the ring and refuse its use.
  return enter_ring(fd_, 0, 0) < 0 ? "the kernel refused its use" : nullptr;
}

bool Ring::supports_transfers() const {
  constexpr unsigned kOperations = 64;
  std::vector<uint64_t> memory((sizeof(io_uring_probe) + kOperations * sizeof(io_uring_probe_op)) / 8 + 1);
  auto* probe = reinterpret_cast<io_uring_probe*>(memory.data());
  if (syscall(__NR_io_uring_register, fd_, IORING_REGISTER_PROBE, probe, kOperations) < 0) return false;
  const auto has = [&](unsigned operation) {
    return operation <= probe->last_op && (probe->ops[operation].flags & IO_URING_OP_SUPPORTED);
  };
  return has(IORING_OP_READ) && has(IORING_OP_WRITE) && has(IORING_OP_POLL_ADD);
}

Ring::~Ring() {
  if (entries_) munmap(entries_, entries_bytes_);
  if (queues_) munmap(queues_, queues_bytes_);
  if (fd_ >= 0) close(fd_);
}

void Ring::transfer(const IoAttempt& attempt, IoRequest::Kind kind, uint64_t tag) {
  io_uring_sqe& entry = static_cast<io_uring_sqe*>(entries_)[tail_++ & sq_mask_];
  entry = {};
  entry.opcode = kind == IoRequest::Kind::read ? IORING_OP_READ : IORING_OP_WRITE;
  entry.fd = attempt.fd;
  entry.off = attempt.offset;
  entry.addr = reinterpret_cast<uintptr_t>(attempt.data);
  entry.len = attempt.length;
  entry.user_data = tag;
}

void Ring::poll(int fd, uint64_t tag) {
  io_uring_sqe& entry = static_cast<io_uring_sqe*>(entries_)[tail_++ & sq_mask_];
  entry = {};
  entry.opcode = IORING_OP_POLL_ADD;
  entry.fd = fd;
  entry.poll_events = POLLIN;
  entry.user_data = tag;
}

bool Ring::enter() {
  store(sq_tail_, tail_);
  return enter_ring(fd_, tail_ - load(sq_head_), 1) >= 0;
}

std::optional<uint64_t> Ring::take_back() {
  if (tail_ == load(sq_head_)) return std::nullopt;
  const uint64_t tag = static_cast<io_uring_sqe*>(entries_)[--tail_ & sq_mask_].user_data;
  store(sq_tail_, tail_);
  return tag;
}

std::optional<Ring::Answer> Ring::answer() {
  const uint32_t head = *cq_head_;
  if (head == load(cq_tail_)) return std::nullopt;
  const io_uring_cqe& entry = static_cast<io_uring_cqe*>(answers_)[head & cq_mask_];
  const Answer answer{entry.user_data, entry.res};
  store(cq_head_, head + 1);
  return answer;
}

}  // namespace cflow

#else

namespace cflow {

std::unique_ptr<Ring> Ring::create(unsigned, std::string& reason) {
  reason = "io_uring: this build has none";
  return nullptr;
}
Ring::~Ring() = default;
void Ring::transfer(const IoAttempt&, IoRequest::Kind, uint64_t) {}
void Ring::poll(int, uint64_t) {}
bool Ring::enter() { return false; }
std::optional<uint64_t> Ring::take_back() { return std::nullopt; }
std::optional<Ring::Answer> Ring::answer() { return std::nullopt; }

}  // namespace cflow

#endif
