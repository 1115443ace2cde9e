// A call with everything known but the addresses: made once a kind of call, then launched with pointers.
// Sizes and strides arrive as flat lists of int64, in the order written at each constructor.
#pragma once
#include <stdexcept>
#include <vector>

#include "append.hpp"
#include "arguments.hpp"
#include "backward.hpp"
#include "check.hpp"
#include "forward.hpp"
#include "merge.hpp"
#include "paged.hpp"

namespace tilewise {

using Ints = std::vector<int64_t>;
template <class T> T* at(uintptr_t address) { return reinterpret_cast<T*>(address); }

class Reader {  // takes a flat list apart
 public:
  explicit Reader(const Ints& list) : p_(list.data()), left_(list.size()) {}
  int64_t next() {
    if (left_-- == 0) throw std::invalid_argument("too few sizes or strides");
    return *p_++;
  }
  Strides strides() { Strides s; s.b = next(); s.h = next(); s.t = next(); return s; }
  Strides4 strides4() { Strides4 s; s.b = next(); s.h = next(); s.t = next(); s.s = next(); return s; }

 private:
  const int64_t* p_;
  std::size_t left_;
};

inline Meaning meaning(double scale, int64_t left, int64_t right, double softcap) {
  Meaning m;  // a negative side is open
  m.scale = scale; m.softcap = softcap;
  m.left = left < 0 ? kOpen : left;
  m.right = right < 0 ? kOpen : right;
  return m;
}

class DenseCall {
 public:
  // sizes: batch q_len kv_len q_heads kv_heads qk_dim v_dim
  // strides: q k v out lse (b h t each), bias mask (b h t s each), q_segments kv_segments (b t each)
  DenseCall(const Ints& sizes, int dtype, double scale, int64_t left, int64_t right, double softcap,
            const Ints& strides, int bias_dtype) {
    Reader n(sizes), s(strides);
    a_.batch = n.next(); a_.q_len = n.next(); a_.kv_len = n.next(); a_.q_heads = n.next(); a_.kv_heads = n.next();
    a_.qk_dim = n.next(); a_.v_dim = n.next();
    a_.dtype = static_cast<DType>(dtype);
    a_.meaning = meaning(scale, left, right, softcap);
    a_.qs = s.strides(); a_.ks = s.strides(); a_.vs = s.strides(); a_.os = s.strides(); a_.lse_strides = s.strides();
    a_.bias_strides = s.strides4(); a_.mask_strides = s.strides4();
    a_.q_segment_stride_b = s.next(); a_.q_segment_stride_t = s.next();
    a_.kv_segment_stride_b = s.next(); a_.kv_segment_stride_t = s.next();
    a_.bias_dtype = static_cast<DType>(bias_dtype);
  }

  // operands: q k v bias mask sinks q_segments kv_segments q_lens kv_lens q_starts kv_starts; 0 where absent
  template <class Operands> AttentionArguments bind(const Operands& o, uintptr_t out, uintptr_t lse) const {
    AttentionArguments a = a_;
    a.q = at<void>(o[0]); a.k = at<void>(o[1]); a.v = at<void>(o[2]);
    a.bias = at<void>(o[3]); a.mask = at<uint8_t>(o[4]); a.sinks = at<void>(o[5]);
    a.q_segments = at<int32_t>(o[6]); a.kv_segments = at<int32_t>(o[7]);
    a.q_lens = at<int32_t>(o[8]); a.kv_lens = at<int32_t>(o[9]);
    a.q_starts = at<int32_t>(o[10]); a.kv_starts = at<int32_t>(o[11]);
    a.out = at<void>(out); a.lse = at<void>(lse);
    return a;
  }

  template <class Operands> int run_forward(const Operands& o, uintptr_t out, uintptr_t lse) const {
    const AttentionArguments a = bind(o, out, lse);
    const ValueError e = check(a);
    if (e == ValueError::ok) forward(a);
    return static_cast<int>(e);
  }

  // grads: dout dlse dq dk dv dbias dsinks; strides: dout dlse dq dk dv (b h t each), dbias (b h t s), dbias sizes (4)
  template <class Operands, class Grads>
  int run_backward(const Operands& o, uintptr_t out, uintptr_t lse, const Grads& g, const Ints& strides) const {
    BackwardArguments b;
    b.forward = bind(o, out, lse);
    const ValueError e = check(b.forward);
    if (e != ValueError::ok) return static_cast<int>(e);
    Reader s(strides);
    b.dout = at<void>(g[0]); b.dlse = at<void>(g[1]);
    b.dq = at<void>(g[2]); b.dk = at<void>(g[3]); b.dv = at<void>(g[4]);
    b.dbias = at<void>(g[5]); b.dsinks = at<void>(g[6]);
    b.dout_strides = s.strides(); b.dlse_strides = s.strides();
    b.dqs = s.strides(); b.dks = s.strides(); b.dvs = s.strides();
    b.dbias_strides = s.strides4();
    for (int64_t& size : b.dbias_sizes) size = s.next();
    backward(b);
    return 0;
  }

 private:
  AttentionArguments a_;
};

inline Pages read_pages(Reader& n, Reader& s, int dtype) {
  Pages p;
  p.num_pages = n.next(); p.page_size = n.next();
  p.dtype = static_cast<DType>(dtype);
  p.k_stride_page = s.next(); p.k_stride_slot = s.next(); p.k_stride_head = s.next();
  p.v_stride_page = s.next(); p.v_stride_slot = s.next(); p.v_stride_head = s.next();
  for (PageScale* scale : {&p.k_scale, &p.v_scale}) {
    scale->stride_page = s.next(); scale->stride_slot = s.next(); scale->stride_head = s.next();
  }
  return p;
}

// batch: kv_lens page_indices cu_q_lens num_seqs
template <class Addresses> PageBatch bind_batch(PageBatch b, const Addresses& a, int first) {
  b.kv_lens = at<int32_t>(a[first]); b.page_indices = at<int32_t>(a[first + 1]);
  b.cu_q_lens = at<int32_t>(a[first + 2]); b.num_seqs = at<int32_t>(a[first + 3]);
  return b;
}

class PagedCall {
 public:
  // sizes: max_tokens q_heads kv_heads qk_dim v_dim max_seqs pages_per_seq max_new num_pages page_size
  // strides: q out lse (b h t each), draft, k_pages v_pages k_scale v_scale (page slot head each)
  PagedCall(const Ints& sizes, int dtype, int page_dtype, double scale, int64_t left, int64_t right, double softcap,
            bool batch_invariant, const Ints& strides) {
    Reader n(sizes), s(strides);
    a_.max_tokens = n.next(); a_.q_heads = n.next(); a_.kv_heads = n.next(); a_.qk_dim = n.next(); a_.v_dim = n.next();
    a_.batch.max_seqs = n.next(); a_.batch.pages_per_seq = n.next(); a_.max_new = n.next();
    a_.dtype = static_cast<DType>(dtype);
    a_.meaning = meaning(scale, left, right, softcap);
    a_.batch_invariant = batch_invariant;
    a_.qs = s.strides(); a_.os = s.strides(); a_.lse_strides = s.strides(); a_.draft_stride_t = s.next();
    a_.pages = read_pages(n, s, page_dtype);
  }

  // addresses: q k_pages v_pages k_scale v_scale kv_lens page_indices cu_q_lens num_seqs sinks draft_mask out lse
  template <class Addresses> int run(const Addresses& p) const {
    PagedArguments a = a_;
    a.q = at<void>(p[0]); a.pages.k = at<void>(p[1]); a.pages.v = at<void>(p[2]);
    a.pages.k_scale.value = at<float>(p[3]); a.pages.v_scale.value = at<float>(p[4]);
    a.batch = bind_batch(a.batch, p, 5);
    a.sinks = at<void>(p[9]); a.draft_mask = at<uint8_t>(p[10]);
    a.out = at<void>(p[11]); a.lse = at<void>(p[12]);
    return static_cast<int>(paged(a));
  }

 private:
  PagedArguments a_;
};

class AppendCall {
 public:
  // sizes: max_tokens kv_heads qk_dim v_dim max_seqs pages_per_seq num_pages page_size
  // strides: k v (b h t each), k_pages v_pages k_scale v_scale (page slot head each)
  AppendCall(const Ints& sizes, int dtype, int page_dtype, const Ints& strides) {
    Reader n(sizes), s(strides);
    a_.max_tokens = n.next(); a_.kv_heads = n.next(); a_.qk_dim = n.next(); a_.v_dim = n.next();
    a_.batch.max_seqs = n.next(); a_.batch.pages_per_seq = n.next();
    a_.dtype = static_cast<DType>(dtype);
    a_.ks = s.strides(); a_.vs = s.strides();
    a_.pages = read_pages(n, s, page_dtype);
  }

  // addresses: k v k_pages v_pages k_scale v_scale kv_lens page_indices cu_q_lens num_seqs
  template <class Addresses> int run(const Addresses& p) const {
    AppendArguments a = a_;
    a.k = at<void>(p[0]); a.v = at<void>(p[1]); a.pages.k = at<void>(p[2]); a.pages.v = at<void>(p[3]);
    a.pages.k_scale.value = at<float>(p[4]); a.pages.v_scale.value = at<float>(p[5]);
    a.batch = bind_batch(a.batch, p, 6);
    return static_cast<int>(append(a));
  }

 private:
  AppendArguments a_;
};

}  // namespace tilewise
