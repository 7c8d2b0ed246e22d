// The weights of a packed tile (pack.h, formats.h), one vector of columns after the other, for every width of codes and
// every form of scales. V names the vectors: Sixteen, or Eight columns at a time on AVX2.

constexpr int kTileDepth = 32, kTileFloats = 512;

struct Sixteen {
  using F = F16;
  using I = I16;
  static constexpr int kColumns = 16;
  OCT_INLINE F set(float x) { return f_set(x); }
  OCT_INLINE I set_i(int32_t x) { return i_set(x); }
  OCT_INLINE F load(const uint8_t* p) { return f_load((const float*)p); }
  OCT_INLINE I load_i(const uint8_t* p) { return i_load((const int32_t*)p); }
  OCT_INLINE I load_u8(const uint8_t* p) { return u8_load(p); }
  OCT_INLINE I load_i8(const uint8_t* p) { return i8_load((const int8_t*)p); }
  OCT_INLINE F load_half(const uint8_t* p) { return half_load((const uint16_t*)p); }
};
#if defined(__AVX2__) && !defined(__AVX512F__)
#include "isa/vec_avx2_half.h"
using Columns = Eight;
#else
using Columns = Sixteen;
#endif

// A tile and what its group of tiles shares.
struct TileAt {
  const uint8_t *tile, *head;
};
OCT_INLINE TileAt tile_at(WeightKind kind, const uint8_t* block, int64_t t) {
  return {block + tile_offset(kind, t), block + head_offset(kind, t)};
}
// The first byte of column block `block`.
OCT_INLINE const uint8_t* block_data(const PackedWeight& weight, int64_t block) {
  return weight.data + block * block_bytes(weight.kind, weight.k);
}

// Nearest bfloat16, ties to even, of values below 2^110: adding 1.5 * 2^16 units of the value's own binade leaves 8
// significant bits. Zero, and what would be denormal, becomes +0.
template <class V>
OCT_INLINE typename V::F round_to_bf16(typename V::F y) {
  const auto units = as_f(i_and(as_i(y), V::set_i(0x7f800000)));
  return f_fnma(units, V::set(98304.0f), f_fma(units, V::set(98304.0f), y));
}
OCT_INLINE F16 round_weight(F16 y) { return round_to_bf16<Sixteen>(y); }

template <bool kRound, class V>
OCT_INLINE typename V::F finish(typename V::F y) {
  if constexpr (kRound)
    return round_to_bf16<V>(y);
  else
    return f_add(y, V::set(0.0f));
}

// What the products of a group's tiles share: d, and -dmin where there is a minimum.
template <class V>
struct GroupScale {
  typename V::F d, m;
};
template <WeightKind kKind, class V>
OCT_INLINE GroupScale<V> group_scale(const uint8_t* head, int column) {
  GroupScale<V> s = {V::set(0.0f), V::set(0.0f)};
  if constexpr (grouped(kKind)) s.d = V::load_half(head + 2 * column);
  if constexpr (grouped(kKind) && has_min(format_of(kKind).scales)) s.m = V::load_half(head + 32 + 2 * column);
  return s;
}

// weight = d * code + m, of the columns from `column` on, for half h of the tile.
template <class V>
struct TileScale {
  typename V::F d, m;
};
template <WeightKind kKind, class V>
OCT_INLINE TileScale<V> tile_scale(const GroupScale<V>& group, const uint8_t* tile, int column, int h) {
  constexpr Format f = format_of(kKind);
  const uint8_t* p = tile + code_bytes(kKind);
  TileScale<V> s = {V::set(0.0f), V::set(0.0f)};
  if constexpr (f.scales == Scales::kHalf || f.scales == Scales::kHalfMin) s.d = V::load_half(p + 2 * column);
  if constexpr (f.scales == Scales::kHalfMin) s.m = V::load_half(p + 32 + 2 * column);
  if constexpr (f.scales == Scales::kFloat || f.scales == Scales::kFloatMin) s.d = V::load(p + 4 * column);
  if constexpr (f.scales == Scales::kFloatMin) s.m = V::load(p + 64 + 4 * column);
  if constexpr (f.scales == Scales::kSub32 || f.scales == Scales::kSub32Min)
    s.d = f_mul(group.d, i_to_f(V::load_i8(p + column)));
  if constexpr (f.scales == Scales::kSub32Min) s.m = f_mul(group.m, i_to_f(V::load_u8(p + 16 + column)));
  if constexpr (f.scales == Scales::kSub16) s.d = f_mul(group.d, i_to_f(V::load_i8(p + 16 * h + column)));
  if constexpr (f.scales == Scales::kSub16Min) {
    const auto both = V::load_u8(p + 16 * h + column);
    s.d = f_mul(group.d, i_to_f(i_and(both, V::set_i(15))));
    s.m = f_mul(group.m, i_to_f(i_shr<4>(both)));
  }
  // d * zero is exact, and so the fused sum is d * (code - zero) rounded once.
  if constexpr (!has_min(f.scales) && f.bits < 8) s.m = f_mul(s.d, V::set((float)-f.zero));
  return s;
}

template <int kFrom, int kTo, class I>
OCT_INLINE I move_bits(I x) {
  if constexpr (kFrom < kTo)
    return i_shl<kTo - kFrom>(x);
  else if constexpr (kFrom > kTo)
    return i_shr<kFrom - kTo>(x);
  else
    return x;
}

// The codes of pairs 8 h + 4 j .. + 3, inputs `odd` of them, one a byte. `codes` points at the tile's first column.
template <WeightKind kKind, class V, int h, int odd, int j>
OCT_INLINE typename V::I four_codes(const uint8_t* codes) {
  constexpr Format f = format_of(kKind);
  static_assert(f.bits < 8 && kKind != WeightKind::kQ4_1);
  constexpr int g = 2 * h + odd, kTwos = f.bits & 4 ? 256 : 0, kOnes = kTwos + (f.bits & 2 ? 128 : 0);
  constexpr int kLow = f.bits & 4;  // bits below those of the 2-bit plane
  typename V::I q = V::set_i(0);
  if constexpr ((f.bits & 4) != 0) q = i_and(move_bits<4 * j, 0>(V::load_i(codes + 64 * g)), V::set_i(0x0f0f0f0f));
  if constexpr ((f.bits & 2) != 0) {
    const auto plane = V::load_i(codes + kTwos + 64 * h);
    q = i_or(q, i_and(move_bits<4 * odd + 2 * j, kLow>(plane), V::set_i(0x03030303 << kLow)));
  }
  if constexpr ((f.bits & 1) != 0) {
    constexpr int kTop = f.bits - 1;
    q = i_or(q, i_and(move_bits<2 * g + j, kTop>(V::load_i(codes + kOnes)), V::set_i(0x01010101 << kTop)));
  }
  if constexpr (f.codebook) q = i_lookup(kCodebook, q);
  return q;
}

template <bool kRound, int b, class V>
OCT_INLINE typename V::F code_weight(typename V::I four, const TileScale<V>& s) {
  typename V::I q = four;
  if constexpr (b > 0) q = i_shr<8 * b>(q);
  if constexpr (b < 3) q = i_and(q, V::set_i(0xff));
  return finish<kRound, V>(f_fma(s.d, i_to_f(q), s.m));
}
template <WeightKind kKind, bool kRound, class V>
OCT_INLINE typename V::F byte_weight(const uint8_t* codes, int input, const TileScale<V>& s) {
  return finish<kRound, V>(f_mul(i_to_f(V::load_i8(codes + 16 * input)), s.d));
}

// Gives the pairs of a tile in ascending order: sink.put(pair, weights of the first input, of the second).
template <WeightKind kKind, bool kRound, class V, int h, int j, class Sink>
OCT_INLINE void four_pairs(const uint8_t* codes, const TileScale<V>& s, Sink& sink) {
  const auto even = four_codes<kKind, V, h, 0, j>(codes), odd = four_codes<kKind, V, h, 1, j>(codes);
  constexpr int p = 8 * h + 4 * j;
  sink.put(p, code_weight<kRound, 0, V>(even, s), code_weight<kRound, 0, V>(odd, s));
  sink.put(p + 1, code_weight<kRound, 1, V>(even, s), code_weight<kRound, 1, V>(odd, s));
  sink.put(p + 2, code_weight<kRound, 2, V>(even, s), code_weight<kRound, 2, V>(odd, s));
  sink.put(p + 3, code_weight<kRound, 3, V>(even, s), code_weight<kRound, 3, V>(odd, s));
}
template <WeightKind kKind, bool kRound, class V, class Sink>
OCT_INLINE void each_pair(const GroupScale<V>& group, const uint8_t* tile, int column, Sink& sink) {
  constexpr Format f = format_of(kKind);
  const TileScale<V> s = tile_scale<kKind, V>(group, tile, column, 0);
  if constexpr (f.bits == 8) {
    const uint8_t* codes = tile + column;
#pragma GCC unroll 4
    for (int p = 0; p < 16; p++)
      sink.put(p, byte_weight<kKind, kRound, V>(codes, 2 * p, s), byte_weight<kKind, kRound, V>(codes, 2 * p + 1, s));
  } else {
    const uint8_t* codes = tile + 4 * column;
    four_pairs<kKind, kRound, V, 0, 0>(codes, s, sink);
    four_pairs<kKind, kRound, V, 0, 1>(codes, s, sink);
    constexpr bool kSame = f.scales != Scales::kSub16 && f.scales != Scales::kSub16Min;
    const TileScale<V> second = kSame ? s : tile_scale<kKind, V>(group, tile, column, 1);
    four_pairs<kKind, kRound, V, 1, 0>(codes, second, sink);
    four_pairs<kKind, kRound, V, 1, 1>(codes, second, sink);
  }
}

// The kinds that these templates serve; the others have expansions of their own. On AVX2 the common ones have kernels
// of two and three rows: what is compiled grows with every kind.
#define OCT_COMMON_KIND(X) X(kQ4_0) X(kQ5_0) X(kQ4_K) X(kQ5_K) X(kQ6_K) X(kG4) X(kG8)
#define OCT_EACH_KIND(X) OCT_COMMON_KIND(X) X(kQ5_1) X(kQ2_K) X(kQ3_K) X(kIQ4_NL) X(kIQ4_XS)
OCT_INLINE constexpr bool is_common(WeightKind kind) {
  switch (kind) {
#define OCT_CASE(kind) case WeightKind::kind:
    OCT_COMMON_KIND(OCT_CASE)
#undef OCT_CASE
    return true;
    default:
      return false;
  }
}
