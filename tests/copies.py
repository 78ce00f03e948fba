"""Copy heads with random weights."""

import torch
from specpilot.controllers.acceptance.copy_head import CopyHead, CopyPredictor


def copy_head(seed: int, hidden: int = 8, width: int = 5) -> CopyHead:
    """A head whose predictions differ much from token to token, with scales unlike 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    head = CopyHead(hidden, width).requires_grad_(False)
    for tensor in (*head.parameters(), head.mean):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    head.scale.copy_(0.5 + torch.rand(head.scale.shape, generator=generator))
    return head


def copy_predictor(vocab: int, seed: int = 0) -> CopyPredictor:
    head = copy_head(seed)
    return CopyPredictor(head, torch.randn(vocab, head.hidden_size, generator=torch.Generator().manual_seed(seed + 1)))
