#include "workspace.hpp"

#include <cassert>
#include <cstdint>
#include <new>

namespace tilewise {
namespace {

constexpr std::size_t kAlign = 64;
#if !defined(TILEWISE_SEPARATE_PIECES)
constexpr std::size_t kKeep = std::size_t{64} << 20;   // a larger block goes back to the system after the call
constexpr std::size_t kRound = std::size_t{64} << 10;
#endif

char* allocate(std::size_t bytes) { return static_cast<char*>(::operator new(bytes, std::align_val_t{kAlign})); }
void release(char* p) { ::operator delete(p, std::align_val_t{kAlign}); }

#if !defined(TILEWISE_SEPARATE_PIECES)
// The calling thread's block. Workspaces lie in it like stack frames; one that finds no room gets memory of its own,
// and the block grows to hold them all the next time it is empty.
struct Block {
  char* start = nullptr;
  std::size_t capacity = 0, used = 0, wanted = 0;
  ~Block() { drop(); }

  bool holds(const char* p) const { return start && p >= start && p < start + capacity; }
  void drop() {
    release(start);
    start = nullptr;
    capacity = 0;
  }
  char* push(std::size_t size) {
    if (used + size > wanted) wanted = used + size;
    if (used == 0 && size > capacity) {
      const std::size_t grown = ((wanted < kKeep ? wanted : size) + kRound - 1) / kRound * kRound;
      drop();
      start = allocate(grown);
      capacity = grown;
    }
    if (size > capacity - used) return allocate(size);
    char* p = start + used;
    used += size;
    return p;
  }
  void pop(char* p, std::size_t size) {
    if (!holds(p)) return release(p);
    used -= size;
    if (used == 0 && capacity > kKeep) drop();
    if (used == 0 && wanted > kKeep) wanted = 0;
  }
};

thread_local Block block;
#endif

}  // namespace

#if defined(TILEWISE_SEPARATE_PIECES)

Workspace::Workspace(std::size_t bytes) : size_(padded(bytes)) {
  if (size_ < bytes) throw std::bad_alloc();
}

Workspace::~Workspace() {
  for (char* p : pieces_) release(p);
}

void* Workspace::take_bytes(std::size_t bytes) {
  used_ += padded(bytes);
  assert(used_ <= size_);
  pieces_.push_back(nullptr);
  return pieces_.back() = allocate(bytes);
}

#else

Workspace::Workspace(std::size_t bytes) : base_(nullptr), size_(padded(bytes)) {
  if (size_ < bytes) throw std::bad_alloc();
  if (size_) base_ = block.push(size_);
}

Workspace::~Workspace() {
  if (size_) block.pop(base_, size_);
}

void* Workspace::take_bytes(std::size_t bytes) {
  char* p = base_ + used_;
  used_ += padded(bytes);
  assert(used_ <= size_);
  return p;
}

#endif

}  // namespace tilewise
