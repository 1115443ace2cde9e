// Values that must be right before a kernel walks by them. Cheap: integer arrays only.
#pragma once
#include "arguments.hpp"

namespace tilewise {

inline ValueError check_starts(const int32_t* starts, int64_t n, int64_t size) {
  if (starts[0] < 0) return ValueError::starts_end;
  for (int64_t i = 0; i < n; i++)
    if (starts[i + 1] < starts[i]) return ValueError::starts_fall;
  return starts[n] > size ? ValueError::starts_end : ValueError::ok;
}

inline ValueError check_lens(const int32_t* lens, int64_t n, int64_t size, ValueError wrong) {
  for (int64_t i = 0; i < n; i++)
    if (lens[i] < 0 || lens[i] > size) return wrong;
  return ValueError::ok;
}

inline ValueError check(const AttentionArguments& a) {
  ValueError e = ValueError::ok;
  if (a.q_starts && (e = check_starts(a.q_starts, a.batch, a.q_len)) != ValueError::ok) return e;
  if (a.kv_starts && (e = check_starts(a.kv_starts, a.batch, a.kv_len)) != ValueError::ok) return e;
  if (a.q_lens && (e = check_lens(a.q_lens, a.batch, a.q_len, ValueError::q_len_range)) != ValueError::ok) return e;
  if (a.kv_lens && (e = check_lens(a.kv_lens, a.batch, a.kv_len, ValueError::kv_len_range)) != ValueError::ok) return e;
  return e;
}

}  // namespace tilewise
