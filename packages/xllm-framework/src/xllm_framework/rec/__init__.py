"""Generative recommendation's nouns: items as short token lists, files of them, and which tokens may follow which.

Numpy only. Knows nothing of models, of how beams are computed or of how a request travels.
"""

from xllm_framework.rec.catalogue import Catalogue, open_catalogue
from xllm_framework.rec.catalogue_store import CatalogueStore
from xllm_framework.rec.item_file import read_items, write_items
from xllm_framework.rec.item_table import InvalidCatalogue, ItemTable
from xllm_framework.rec.valid_paths import ValidPaths

__all__ = [
    "Catalogue",
    "CatalogueStore",
    "InvalidCatalogue",
    "ItemTable",
    "ValidPaths",
    "open_catalogue",
    "read_items",
    "write_items",
]
