"""Reads .cflow and .vflow files of versions 5 and 6. Written from docs/format.md alone, with the standard library alone.

    python3 cflow_reader.py FILE...      one JSON document: tensors with dtype, shape and SHA-256 of their f32 values

Section numbers in comments are those of the document.
"""
import array
import hashlib
import json
import struct
import sys
import zlib

# Section 6: id -> (name, columns of a group, bytes of a scale, bytes of data).
DTYPES = {0: ("q4_0", 32, 2, 16), 1: ("q8_0", 32, 2, 32), 2: ("f16", 1, 0, 2), 3: ("f32", 1, 0, 4)}
MATRICES = {
    "q": 0, "k": 1, "v": 2, "o": 3, "gate": 4, "up": 5, "down": 6, "expert_gate": 8, "expert_up": 9,
    "expert_down": 10, "embedding": 11, "lm_head": 12, "layer_input_gate": 13, "layer_input_out": 14,
    "layer_input_projection": 15, "layer_input_embedding": 16,
}  # fmt: skip
PLAIN = 255
NO_EXPERT = 0xFFFF


class Bad(Exception):
    """What the document says a reader must refuse."""


class Tensor:
    def __init__(self, name, dtype, matrix, layer, expert, shape, offset=0, length=0):
        self.name, self.dtype, self.matrix, self.shape = name, dtype, matrix, shape
        self.layer, self.expert, self.offset, self.length = layer, expert, offset, length


class Stream:
    def __init__(self, name, offset, length, checksum, tensors):
        self.name, self.offset, self.length = name, offset, length
        self.checksum, self.tensors = checksum, tensors


# ---------------------------------------------------------------- tiles (section 6, and 13 for version 6)


def tile_header(version, data, at):
    """(layer, matrix, expert, row, column, rows, columns, dtype or None)"""
    if version == 5:
        layer, matrix, expert, row, col, rows, cols, _ = struct.unpack_from("<HBBIHHHH", data, at)
        return layer, matrix, NO_EXPERT if expert == 255 else expert, row, col, rows, cols, None
    layer, expert, row, col, matrix, dtype, rows, last = struct.unpack_from("<HHIIBBBB", data, at)
    return layer, matrix, expert, row, col, rows, last + 1, dtype


def tile_bytes(dtype, rows, cols):
    _, group, scale, data = DTYPES[dtype]
    return 16 + rows * -(-cols // group) * (scale + data)


def tile_values(dtype, data, at, rows, cols):
    """Rows of a tile, each a list of its values."""
    name, group, _, size = DTYPES[dtype]
    at += 16
    if name in ("f16", "f32"):
        letter = "e" if name == "f16" else "f"
        return [list(struct.unpack_from(f"<{cols}{letter}", data, at + row * cols * size)) for row in range(rows)]
    groups = -(-cols // group)
    scales = struct.unpack_from(f"<{rows * groups}e", data, at)
    at += 2 * rows * groups
    out = []
    for row in range(rows):
        values = []
        for g in range(groups):
            index = row * groups + g
            s = scales[index]
            block = data[at + index * size : at + (index + 1) * size]
            if name == "q4_0":
                values += [s * ((b & 15) - 8) for b in block]
                values += [s * ((b >> 4) - 8) for b in block]
            else:
                values += [s * q for q in struct.unpack("<32b", block)]
        out.append(values[:cols])
    return out


def tensor_values(version, data, stream, tensor):
    """f32 values, row-major. Tiles of a stream may be interleaved: those of other matrices are passed over."""
    if tensor.matrix == PLAIN:
        return array.array("f", data[tensor.offset : tensor.offset + tensor.length])
    rows, cols = tensor.shape
    out = array.array("f", bytes(4 * rows * cols))
    at, left = tensor.offset, tensor.length
    while left:
        layer, matrix, expert, row, col, height, width, dtype = tile_header(version, data, at)
        dtype = stream.tensors[0].dtype if dtype is None else dtype
        size = tile_bytes(tensor.dtype if version == 5 else dtype, height, width)
        if (layer, matrix, expert) == (tensor.layer, tensor.matrix, tensor.expert):
            for r, values in enumerate(tile_values(tensor.dtype, data, at, height, width)):
                start = (row + r) * cols + col
                out[start : start + width] = array.array("f", values)
            left -= size
        at += size
    return out


# ---------------------------------------------------------------- version 5


HEADERS = {
    b"CFLOW\0\0\0": (88, "<8xIIHHBBHHHHBBIIBBHHHQQIIQBBBBf", (
        "version hidden_dim num_layers num_q_heads num_kv_heads global_kv_heads head_dim global_head_dim ffn_dim "
        "expert_ffn_dim num_experts top_k vocab_size sliding_window sliding_pattern quant_type tile_rows tile_cols "
        "quant_group layer_table_offset metadata_offset metadata_length head_checksum file_size dense_delay "
        "expert_delay combine_style feature_flags final_logit_softcap").split(), 68),
    b"VFLOW\0\0\0": (64, "<8xBBHHHBBHHHHBBIIBBHIIIIBBBBf", (
        "version sliding_pattern hidden_dim num_layers num_q_heads num_kv_heads global_kv_heads head_dim "
        "global_head_dim ffn_dim expert_ffn_dim num_experts top_k vocab_size sliding_window quant_type quant_group "
        "group_count group_table_offset metadata_offset metadata_length head_checksum dense_delay expert_delay "
        "combine_style feature_flags final_logit_softcap").split(), 52),
}  # fmt: skip


def parts_of(config):
    """Section 5: for each stream its parts in order; a part is a plain tensor or a list of interleaved matrices."""
    d, vocab = config["hiddenDim"], config["vocabSize"]
    layers = config["layers"]
    width = config.get("perLayerInput", {}).get("dim", 0)
    for index, layer in enumerate(layers):
        yield from layer_parts(config, layer, index, d, width, len(layers))
    yield "final_norm", [plain("norm.weight", d)]
    embedding = [[matrix("embed_tokens.weight", "embedding", vocab, d)]]
    if width:
        embedding += [[matrix("layer_input.embedding.weight", "layer_input_embedding", vocab, len(layers) * width)]]
    yield "embedding", embedding
    if not config.get("tiedEmbeddings", False):
        yield "lm_head", [[matrix("lm_head.weight", "lm_head", vocab, d)]]


def plain(name, *shape):
    return Tensor(name, 3, PLAIN, 0, NO_EXPERT, list(shape))


def matrix(name, kind, rows, cols, layer=0, expert=NO_EXPERT):
    return Tensor(name, None, MATRICES[kind], layer, expert, [rows, cols])


def layer_parts(config, layer, index, d, width, count):
    a, ffn, experts = layer["attention"], layer.get("ffn"), layer.get("experts")
    norms = layer.get("norms", "pre")
    before, after = norms in ("pre", "sandwich"), norms in ("post", "sandwich")
    at = f"layers.{index}."
    q, kv = a["heads"] * a["headDim"], a["kvHeads"] * a["headDim"]
    shared = "kvFrom" in a
    inputs = [("q", q)] + ([] if shared else [("k", kv)])
    inputs += [] if shared or a.get("valueFromKey") else [("v", kv)]

    parts = []
    parts += [plain(at + "attn_norm.weight", d)] if before else []
    parts += [plain(at + "attn_post_norm.weight", d)] if after else []
    if a.get("qkNorm", "none") != "none":
        head = a["qkNorm"] == "head"
        parts += [plain(at + "attn.q_norm.weight", a["headDim"] if head else q)]
        parts += [] if shared else [plain(at + "attn.k_norm.weight", a["headDim"] if head else kv)]
    if a.get("biasQkv"):
        parts += [plain(f"{at}attn.{name}_proj.bias", rows) for name, rows in inputs]
    parts += [plain(at + "attn.o_proj.bias", d)] if a.get("biasOut") else []
    parts += [[matrix(f"{at}attn.{name}_proj.weight", name, rows, d, index) for name, rows in inputs]]
    parts += [[matrix(at + "attn.o_proj.weight", "o", d, q, index)]]
    if width and index == 0:
        parts += [plain("layer_input.norm.weight", width)]
        parts += [[matrix("layer_input.projection.weight", "layer_input_projection", count * width, d)]]
    yield at + "attention", parts

    own = experts and experts.get("ownNorms")
    around = ([plain(at + "ffn_norm.weight", d)] if before else []) + (
        [plain(at + "ffn_post_norm.weight", d)] if after else [])  # fmt: skip
    scale = [plain(at + "output_scale", 1)] if layer.get("outputScale") else []
    if ffn:
        f = ffn["dim"]
        parts = around + ([plain(at + "ffn_out_norm.weight", d)] if own else [])
        if ffn.get("bias"):
            parts += [plain(f"{at}ffn.{name}_proj.bias", rows) for name, rows in (("gate", f), ("up", f), ("down", d))]
        parts += [[matrix(f"{at}ffn.{name}_proj.weight", name, f, d, index) for name in ("gate", "up")]]
        parts += [[matrix(at + "ffn.down_proj.weight", "down", d, f, index)]]
        if width:
            parts += [plain(at + "layer_input.norm.weight", d)]
            parts += [[matrix(at + "layer_input.gate.weight", "layer_input_gate", width, d, index)]]
            parts += [[matrix(at + "layer_input.out.weight", "layer_input_out", d, width, index)]]
        yield at + "dense", parts + scale
    if experts:
        n, f = experts["count"], experts["dim"]
        parts = [] if ffn else list(around)
        parts += [plain(at + "experts_norm.weight", d), plain(at + "experts_out_norm.weight", d)] if own else []
        parts += [plain(at + "router_norm.weight", d)] if experts.get("routerNorm") else []
        parts += [plain(at + "router.expert_scale", n)] if experts.get("expertScale") else []
        parts += [plain(at + "router.weight", n, d)]
        yield at + "router", parts + ([] if ffn else scale)
        for e in range(n):
            name = f"{at}experts.{e}."
            yield f"{at}experts.{e}", [
                [matrix(f"{name}{p}_proj.weight", f"expert_{p}", f, d, index, e) for p in ("gate", "up")],
                [matrix(name + "down_proj.weight", "expert_down", d, f, index, e)],
            ]


def place(parts, dtype):
    """Gives tensors their offset in the stream and their length; returns the length of the stream."""
    at = 0
    tensors = []
    for part in parts:
        if isinstance(part, Tensor):
            part.offset, part.length = at, 4 * count_of(part.shape)
            at += part.length
            tensors.append(part)
            continue
        for tensor in part:
            tensor.dtype, tensor.length = dtype, 0
        for row in range(0, max(t.shape[0] for t in part), 128):
            for tensor in part:
                rows = min(128, tensor.shape[0] - row)
                if rows <= 0:
                    continue
                tensor.offset = at if row == 0 else tensor.offset
                size = sum(tile_bytes(dtype, rows, min(256, tensor.shape[1] - c)) for c in range(0, tensor.shape[1], 256))
                tensor.length += size
                at += size
        tensors += part
    return at, tensors


def count_of(shape):
    product = 1
    for n in shape:
        product *= n
    return product


def open5(data, magic):
    size, layout, names, checksum_at = HEADERS[magic]
    h = dict(zip(names, struct.unpack_from(layout, data, 0)))
    regions = [("header", 0, size, 8)]
    start, length = h["metadata_offset"], h["metadata_length"]
    metadata = json.loads(data[start : start + length])
    regions.append(("metadata", start, length, 1))
    config = metadata["config"]
    layers = config["layers"]
    if "group_table_offset" in h:
        group = h["group_table_offset"], 56 * h["group_count"]
        regions.append(("group_table", *group, 8))
        table = -(-sum(group) // 8) * 8
    else:
        table = h["layer_table_offset"]
        if h["file_size"] != len(data):
            raise Bad("file_size")
    end = table + 64 * len(layers) + 48
    regions.append(("layer_table", table, end - table, 8))
    head = bytearray(data[:end])
    head[checksum_at : checksum_at + 4] = bytes(4)
    if zlib.crc32(head) != h["head_checksum"]:
        raise Bad("head_checksum")

    places = {}
    for index, layer in enumerate(layers):
        entry = struct.unpack_from("<8Q", data, table + 64 * index)
        for name, pair in zip(("attention", "dense", "router", "expert_table"), zip(entry[::2], entry[1::2])):
            if pair != (0, 0):
                places[f"layers.{index}.{name}"] = pair
        if "experts" in layer:
            at, bytes_ = places[f"layers.{index}.expert_table"]
            regions.append((f"layers.{index}.expert_table", at, bytes_, 8))
            for e in range(layer["experts"]["count"]):
                places[f"layers.{index}.experts.{e}"] = struct.unpack_from("<2Q", data, at + 16 * e)
    vocab = struct.unpack_from("<6Q", data, table + 64 * len(layers))
    for name, pair in zip(("final_norm", "embedding", "lm_head"), zip(vocab[::2], vocab[1::2])):
        if pair != (0, 0):
            places[name] = pair

    streams = []
    for name, parts in parts_of(config):
        needed, tensors = place(parts, h["quant_type"])
        offset, length = places[name]
        if length != needed:
            raise Bad(f"{name}: {length} bytes, its tensors need {needed}")
        streams.append(Stream(name, offset, length, int(metadata["checksums"][name], 16), tensors))
    for name, offset, length, _ in regions:
        claimed = metadata["checksums"].get(name)
        if claimed and zlib.crc32(data[offset : offset + length]) != int(claimed, 16):
            raise Bad(f"{name}: checksum")
    return 5, streams, regions


# ---------------------------------------------------------------- version 6 (section 13)


def open6(data):
    head_checksum, head_bytes, size, required, _, start, count, stride, _ = struct.unpack_from("<IQQIIHHHH", data, 12)
    if required:
        raise Bad("required features")
    if size != len(data):
        raise Bad("file_size")
    table = bytearray(data[: start + count * stride])
    table[12:16] = bytes(4)
    if zlib.crc32(table) != head_checksum:
        raise Bad("head_checksum")
    sections, regions = {}, [("header", 0, len(table), 8)]
    for i in range(count):
        kind, entry, offset, length, capacity, checksum, _ = struct.unpack_from("<IIQQQII", data, start + i * stride)
        sections[kind] = entry, data[offset : offset + length]
        regions.append((f"section {kind}", offset, capacity, 8))
        if zlib.crc32(sections[kind][1]) != checksum:
            raise Bad(f"section {kind}: checksum")
        if kind <= 4 and offset + capacity > head_bytes:
            raise Bad(f"section {kind}: outside the head")
    names = sections[2][1]

    def rows(kind, layout):
        entry, table = sections[kind]
        return [struct.unpack_from(layout, table, at) for at in range(0, len(table), entry)]

    called = lambda row: names[row[0] : row[0] + row[1]].decode()
    entries = rows(4, "<IHBBIIIIIIQQ")
    streams = []
    for row in rows(3, "<IHBBIIQQIIII"):
        _, _, _, _, layer, expert, offset, length, first, many, checksum, _ = row
        tensors = [
            Tensor(called(t), t[2], t[3], layer, expert, list(t[6 : 6 + t[5]]), t[10], t[11])
            for t in entries[first : first + many]
        ]
        streams.append(Stream(called(row), offset, length, checksum, tensors))
    return 6, streams, regions


# ---------------------------------------------------------------- both


def open_file(data):
    magic = data[:8]
    if magic not in HEADERS:
        raise Bad("magic")
    version = data[8]
    if version not in (5, 6):
        raise Bad(f"version {version}")
    return open5(data, magic) if version == 5 else open6(data)


def check_cover(data, streams, regions):
    """Every byte belongs to one region; gaps are shorter than an alignment, and zero."""
    end = 0
    for name, offset, length, alignment in sorted(
        regions + [(s.name, s.offset, s.length, 4096) for s in streams], key=lambda region: region[1]
    ):
        if offset < end or offset % alignment or offset - end >= max(alignment, 1) and offset != end:
            raise Bad(f"{name} at {offset}")
        if any(data[end:offset]):
            raise Bad(f"padding before {name}")
        end = offset + length
    if end != len(data):
        raise Bad(f"{len(data) - end} bytes after the last region")


def check_stream(version, data, stream):
    """Checksum, and the header of every tile in order."""
    if zlib.crc32(data) != stream.checksum:
        raise Bad(f"{stream.name}: checksum")
    by_matrix = {(t.layer, t.matrix): t for t in stream.tensors if t.matrix != PLAIN}
    plain_at = {t.offset: t.length for t in stream.tensors if t.matrix == PLAIN}
    at, covered = 0, dict.fromkeys(by_matrix, 0)
    while at < len(data):
        if at in plain_at and plain_at[at]:
            at += plain_at.pop(at)
            continue
        layer, matrix, expert, row, col, rows, cols, dtype = tile_header(version, data, at)
        tensor = by_matrix.get((layer, matrix))
        right = tensor and expert == tensor.expert and dtype in (None, tensor.dtype)
        if not right or row + rows > tensor.shape[0] or col + cols > tensor.shape[1]:
            raise Bad(f"{stream.name}: tile at {at}")
        covered[layer, matrix] += rows * cols
        at += tile_bytes(tensor.dtype, rows, cols)
    for key, tensor in by_matrix.items():
        if covered[key] != count_of(tensor.shape):
            raise Bad(f"{tensor.name}: {covered[key]} weights")


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    version, streams, regions = open_file(data)
    check_cover(data, streams, regions)
    tensors = {}
    for stream in streams:
        own = data[stream.offset : stream.offset + stream.length]
        check_stream(version, own, stream)
        for tensor in stream.tensors:
            values = tensor_values(version, own, stream, tensor)
            digest = hashlib.sha256(values.tobytes()).hexdigest()
            tensors[tensor.name] = [DTYPES[tensor.dtype][0], tensor.shape, digest]
    return {"version": version, "tensors": tensors}


def main(paths):
    out = {}
    for path in paths:
        try:
            out[path] = read(path)
        except (Bad, ValueError, LookupError, TypeError, AttributeError, struct.error) as problem:
            out[path] = {"refused": repr(problem)}
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
