"""The demo model's file, and the same weights stored in other types. Knows nothing of servers."""

from __future__ import annotations

from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize

from xllm_framework.config import LoadConfig
from xllm_framework.model import resolve_model

_OWN_FIELDS = ("GGUF.", "general.architecture", "general.quantization_version", "general.file_type")


def demo_file() -> Path:
    """Return the embedded demo model's GGUF file, most of whose matrices are Q4_1."""
    return resolve_model("", LoadConfig()).path


def write_copy(source: Path, target: Path, kind: GGMLQuantizationType) -> None:
    """Write the matrices of `source`, dequantised and stored as `kind`, its vectors, and its metadata to `target`."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith(_OWN_FIELDS):
            item_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], item_type)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        stored_kind = kind if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quantize(values, stored_kind), raw_dtype=stored_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensor_bytes(path: Path) -> int:
    """Return the bytes of a file's tensors: what one decoded token reads, where the embedding is also the head."""
    return sum(int(tensor.n_bytes) for tensor in GGUFReader(path).tensors)
