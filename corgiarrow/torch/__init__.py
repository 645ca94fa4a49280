"""For PyTorch: the paper's ``CorgiPileDataset``, a loader, and a sampler of indices."""

from corgiarrow.errors import MissingExtraError

try:
    import torch as _torch
except ImportError:
    raise MissingExtraError("this needs PyTorch: pip install 'corgiarrow[torch]'") from None
del _torch

from corgiarrow.torch.dataset import CorgiPileDataset
from corgiarrow.torch.loading import loader
from corgiarrow.torch.sampler import CorgiPileSampler

__all__ = ["CorgiPileDataset", "CorgiPileSampler", "loader"]
