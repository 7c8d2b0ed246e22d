// The attention op. Needs math.inl before it.
#pragma once

#include "../attention_layout.h"
#include "attention_dot.inl"
#include "attention_tiled.inl"
#include "attention_naive.inl"

static void k_attention(const AttentionArgs& p, const Team& team) {
  if (p.naive)
    an_naive(p, team);
  else
    at_tiled(p, team);
}
