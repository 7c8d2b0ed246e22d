// Sizes that the attention kernels and attention_scratch_bytes() share. Macros alone: nothing here may become an inline
// symbol of a per-ISA file.
#pragma once

#define OCT_ATTN_TILE 32        // positions a tile; part of the arithmetic contract
#define OCT_ATTN_PARTITION 512  // positions a partition; part of the arithmetic contract
#define OCT_ATTN_ROWS 32        // query rows (rows x heads of one KV head) that share a pass, unless one row has more
#define OCT_ATTN_SPLIT_BYTES (4 << 20)  // a thread's share of the memory that holds unmerged partitions
