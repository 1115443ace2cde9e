// Scratch that is kept: one growing, 64-byte aligned block a thread. A Workspace hands out pieces and gives them back
// on exit.
#pragma once
#include <cstddef>
#if defined(TILEWISE_SEPARATE_PIECES)
#include <vector>
#endif

namespace tilewise {

class Workspace {
 public:
  explicit Workspace(std::size_t bytes);  // may throw std::bad_alloc; nothing is zeroed
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  // The next n elements of T, 64-byte aligned. The sum must not pass `bytes` (each piece is rounded up to 64 bytes).
  template <class T> T* take(std::size_t n) { return static_cast<T*>(take_bytes(n * sizeof(T))); }
  static constexpr std::size_t padded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  void* take_bytes(std::size_t bytes);
#if defined(TILEWISE_SEPARATE_PIECES)  // under sanitizers: a step from one piece into the next is found
  std::vector<char*> pieces_;
#else
  char* base_;
#endif
  std::size_t used_ = 0, size_;
};

}  // namespace tilewise
