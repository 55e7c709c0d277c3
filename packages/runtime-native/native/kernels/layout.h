// Where things stand inside a stripe. Internal to each kernel unit: everything is in an anonymous namespace, because
// the linker keeps one copy of a shared inline function, and that copy could use instructions that the CPU lacks.
#pragma once

#include "kernels.h"

#define CFLOW_KERNEL inline __attribute__((always_inline))

namespace cflow {
namespace {

constexpr int kTileGroups = kTileCols / kGroup;

/// One column tile of a stripe.
struct TileView {
  const uint8_t* scales;  // f16 [rows][groups]
  const uint8_t* data;    // [rows][row_bytes]
  int cols;
  int groups;        // scales of a row; 0 for f16 and f32
  size_t row_bytes;  // data of a row
  size_t bytes;      // the whole tile
};

template <Dtype D>
CFLOW_KERNEL TileView tile_at(const uint8_t* tile, int rows, int cols_left) {
  TileView v;
  v.cols = cols_left < kTileCols ? cols_left : kTileCols;
  const int groups = (v.cols + kGroup - 1) / kGroup;
  v.groups = D == Dtype::q4_0 || D == Dtype::q8_0 ? groups : 0;
  v.row_bytes = static_cast<size_t>(D == Dtype::q4_0   ? 16 * groups
                                    : D == Dtype::q8_0 ? 32 * groups
                                    : D == Dtype::f16  ? 2 * v.cols
                                                       : 4 * v.cols);
  const size_t scale_bytes = static_cast<size_t>(rows) * 2u * static_cast<size_t>(v.groups);
  v.scales = tile + kTileHeaderBytes;
  v.data = v.scales + scale_bytes;
  v.bytes = kTileHeaderBytes + scale_bytes + static_cast<size_t>(rows) * v.row_bytes;
  return v;
}

CFLOW_KERNEL const uint8_t* row_data(const TileView& tile, int row) {
  return tile.data + static_cast<size_t>(row) * tile.row_bytes;
}

/// f16 scales of one row of a tile.
CFLOW_KERNEL const uint8_t* row_scales_at(const TileView& tile, int row) {
  return tile.scales + static_cast<size_t>(row) * 2u * static_cast<size_t>(tile.groups);
}

/// Asks for the share of the next tile that corresponds to n rows from `row` on, scales included. Beyond the end of the
/// mapping a prefetch does nothing.
CFLOW_KERNEL void prefetch_next_tile(const uint8_t* stripe, const TileView& tile, int row, int n) {
  const size_t row_total = tile.row_bytes + 2u * static_cast<size_t>(tile.groups);
  const uint8_t* next = stripe + tile.bytes + static_cast<size_t>(row) * row_total;
  const size_t bytes = static_cast<size_t>(n) * row_total;
  for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(next + line, 0, 2);
}

/// The scales of one row of a tile as f32; 0 for groups that it lacks.
template <class V>
CFLOW_KERNEL typename V::S load_row_scales(const TileView& tile, int row) {
  const uint8_t* scales = row_scales_at(tile, row);
  if (__builtin_expect(tile.groups == kTileGroups, 1)) return V::load_scales(scales);
  uint8_t bits[2 * kTileGroups] = {};
  __builtin_memcpy(bits, scales, 2u * static_cast<size_t>(tile.groups));
  return V::load_scales(bits);
}

}  // namespace
}  // namespace cflow
