// Keys and values on disk.
#pragma once

#include <filesystem>
#include <string_view>

#include "runtime/decoder/sequence.h"
#include "runtime/decoder/session.h"

namespace quern::runtime {

// Writes a sequence's tokens, keys and values, whole or not at all. `model` tells which model made them, down
// to the last bit of its weights; it is compared when they are read. Equal sequences give equal bytes.
//
// Format (.qkv, little-endian): a header of 64 bytes, {magic "QUERNKV1", version u32 = 1, CRC-32C of the
// description u32, its size u64, offset of the blocks u64 (a multiple of 4096), their size u64, CRC-32C of
// them u32, CRC-32C of the header before it u32, zeros}; the description, {strings (u32 size, bytes) of model
// and instruction set, u8 of the type of keys and values, u8 whether the longer rotary frequencies are in
// use, layers u32, for each of them KV heads, head size, value size, window i64, tokens u64, each of them
// i64, for each layer and block u8 whether it is there}; the blocks that are, layer by layer, as the
// attention kernels lay them out (runtime/cpu/attention.h), slots beyond the last token zero.
//
// Throws Error{Io}, Error{InvalidArgument} for an undecided tree, or tokens that were moved
// (remove_tokens()).
void save_sequence(const Sequence& sequence, const std::filesystem::path& path, std::string_view model);

// Maps such a file; its blocks are used where they lie, and copied when they are written to. Throws
// Error{Io}; Error{Corrupt} for what is damaged; Error{BadData} for what another model or instruction set
// made, for another type of keys and values, or for more tokens than the context; nothing has changed then.
Sequence load_sequence(Session& session, const std::filesystem::path& path, std::string_view model);

}  // namespace quern::runtime
