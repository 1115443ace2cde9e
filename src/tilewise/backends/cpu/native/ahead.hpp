// Fetching ahead: walks through the memory of a block of page rows to come, a few cache lines at a time.
#pragma once
#include "simd.hpp"

namespace tilewise {

// Key by key, K before V; in a key `runs` pieces of `bytes`, `run_stride` bytes apart (one piece when the heads are neighbours).
struct AheadRows {
  const char* base = nullptr;
  const int64_t* offset = nullptr;  // [keys], in elements
  int64_t element = 1, runs = 0, run_stride = 0, bytes = 0;
};

class Ahead {
 public:
  Ahead() = default;
  Ahead(const AheadRows& k, const AheadRows& v, int64_t keys) : part_{k, v}, keys_(keys) { enter(); }

  inline __attribute__((always_inline)) void touch(int lines) {
    for (; lines > 0 && left_ > 0; lines--) {
      prefetch(at_);
      at_ += 64;
      left_ -= 64;
      if (left_ <= 0) advance();
    }
  }
  int64_t lines() const { return keys_ * (part_[0].runs * ((part_[0].bytes + 63) / 64) + part_[1].runs * ((part_[1].bytes + 63) / 64)); }

 private:
  void enter() {
    const AheadRows& r = part_[which_];
    left_ = 0;
    if (key_ >= keys_) return;
    if (run_ >= r.runs) return advance();
    at_ = r.base + r.offset[key_] * r.element + run_ * r.run_stride;
    left_ = r.bytes;
  }
  TW_NOINLINE void advance() {
    if (++run_ >= part_[which_].runs) {
      run_ = 0;
      if (which_) key_++;
      which_ ^= 1;
    }
    enter();
  }

  AheadRows part_[2] = {};
  int64_t keys_ = 0, key_ = 0, run_ = 0, left_ = 0;
  const char* at_ = nullptr;
  int which_ = 0;
};

}  // namespace tilewise
