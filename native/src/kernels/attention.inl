// The attention op. Needs math.inl before it, and amx_tiles.inl where there are tiles.
#pragma once

// In the order of their dependence.
#include "../attention_layout.h"

#include "attention_shape.inl"

#include "attention_dot.inl"

#include "attention_many.inl"
#if OCTAVO_AMX
#include "attention_amx.inl"
#endif

#include "attention_tiled.inl"

#include "attention_shared.inl"

#include "attention_schedule.inl"

#include "attention_naive.inl"

static void k_attention(const AttentionArgs& p, const Team& team) {
  if (p.naive)
    an_naive(p, team);
  else
    at_tiled(p, team);
}
