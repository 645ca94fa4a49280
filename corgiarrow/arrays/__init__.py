"""Batches as NumPy arrays, by a contract that depends on the schema and the options only: see ``docs/arrays.md``."""

from corgiarrow.arrays.converter import Converter
from corgiarrow.arrays.options import ArrayOptions, Image, Pad
from corgiarrow.arrays.values import ArraySpec, Ragged, SparseSpec

__all__ = ["ArrayOptions", "ArraySpec", "Converter", "Image", "Pad", "Ragged", "SparseSpec"]
