// Fetching ahead: walks through the memory of a block of page rows to come, a few cache lines at a time.
#pragma once
#include "simd.hpp"

namespace tilewise {

// Key by key, K before V; in a key `runs` pieces of `bytes`, `run_stride` bytes apart (one piece when the heads are
// neighbours).
struct AheadRows {
  const char* base = nullptr;
  const int64_t* offset = nullptr;  // [keys], in elements
  int64_t element = 1, runs = 0, run_stride = 0, bytes = 0;
};

// Everything is inline: a call inside the kernels' loops would push their accumulators out of the registers.
class Ahead {
 public:
  Ahead() = default;
  Ahead(const AheadRows& k, const AheadRows& v, int64_t keys) : k_(k), v_(v), keys_(k.runs + v.runs > 0 ? keys : 0) {
    if (keys_ > 0) enter();
  }
  inline __attribute__((always_inline)) void touch(int lines) {
    for (; lines > 0 && left_ > 0; lines--) {
      prefetch(at_);
      at_ += 64;
      left_ -= 64;
      if (left_ <= 0) {
        if (++run_ == k_.runs + v_.runs) run_ = 0, key_++;
        if (key_ < keys_) enter();
      }
    }
  }
  int64_t lines() const { return keys_ * (k_.runs * ((k_.bytes + 63) / 64) + v_.runs * ((v_.bytes + 63) / 64)); }

 private:
  inline __attribute__((always_inline)) void enter() {
    const AheadRows& r = run_ < k_.runs ? k_ : v_;
    at_ = r.base + r.offset[key_] * r.element + (run_ < k_.runs ? run_ : run_ - k_.runs) * r.run_stride;
    left_ = r.bytes;
  }

  AheadRows k_, v_;
  int64_t keys_ = 0, key_ = 0, run_ = 0, left_ = 0;
  const char* at_ = nullptr;
};

}  // namespace tilewise
