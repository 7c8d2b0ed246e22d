// The threads that run one op together. Every op is called by each member with the same arguments.
// Owned by the thread pool (pool.cpp); a team of one is a valid team.
#pragma once
#include <cstdint>

namespace octavo {

struct Shared;  // barrier and counter, defined in pool.cpp

struct Team {
  int rank;
  int size;
  Shared* shared;

  // Waits until every member has arrived; what they wrote before is then visible to all.
  void barrier() const;
  // Hands out 0, 1, 2, ... once each, for dynamic division of work. All members must pass reset_counter()
  // (which contains a barrier) before the first take().
  void reset_counter() const;
  int64_t take() const;
  // The part of [0, n) that belongs to this member, in whole units; equal for every call. Always inlined: a
  // shared copy compiled for a newer instruction set must not reach older machines.
  __attribute__((always_inline)) void range(int64_t n, int64_t* begin, int64_t* end) const {
    *begin = n * rank / size;
    *end = n * (rank + 1) / size;
  }
};

}  // namespace octavo
