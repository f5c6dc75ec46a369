"""Attention libraries to choose instead, as functions (q, k, v, causal) -> o on (b, s, h, d) tensors."""
import importlib.util
import os

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def swap(x):
    return x.transpose(1, 2)


def sdpa(backend):
    def run(q, k, v, causal):
        with sdpa_kernel(backend):
            return swap(F.scaled_dot_product_attention(swap(q), swap(k), swap(v), is_causal=causal,
                                                       enable_gqa=q.shape[2] != k.shape[2]))
    return run


def flex():
    from torch import _dynamo
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    _dynamo.config.recompile_limit = _dynamo.config.cache_size_limit = 1000
    compiled, masks = torch.compile(flex_attention, dynamic=False), {}

    def run(q, k, v, causal):
        sizes = (q.shape[1], k.shape[1])
        if causal and sizes not in masks:
            shift = sizes[1] - sizes[0]
            masks[sizes] = create_block_mask(lambda b, h, i, j: i + shift >= j, None, None, *sizes)
        return swap(compiled(swap(q), swap(k), swap(v), block_mask=masks[sizes] if causal else None,
                             enable_gqa=q.shape[2] != k.shape[2]))
    return run


def flash_attn_2():
    from flash_attn import flash_attn_func
    return lambda q, k, v, causal: flash_attn_func(q, k, v, causal=causal)


def flash_attn_3(folder):
    """The official package, or the build in vLLM's wheel, which has only the variable-length entry point."""
    if importlib.util.find_spec("flash_attn_interface"):
        from flash_attn_interface import flash_attn_func
        def official(q, k, v, causal):
            out = flash_attn_func(q, k, v, causal=causal)
            return out[0] if isinstance(out, tuple) else out
        return official
    torch.ops.load_library(os.path.join(folder, "_vllm_fa3_C.abi3.so"))
    starts = {}

    def run(q, k, v, causal):
        (b, sq, _, d), sk = q.shape, k.shape[1]
        for n in (sq, sk):
            if (b, n) not in starts:
                starts[b, n] = torch.arange(0, b * n + 1, n, dtype=torch.int32, device=q.device)
        flat = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)]
        out = torch.ops._vllm_fa3_C.fwd(
            *flat, None, None, None, None, starts[b, sq], starts[b, sk], None, None, None, sq, sk, None, None, None, None,
            None, None, None, None, None, d**-0.5, causal, -1, -1, 0.0, True, None,
            1 if sq == sk else 0,  # splits of the keys; 0: as many as it chooses
            None, 0, None, 1, 0, None)[0]
        return out.view(b, sq, q.shape[2], -1)
    return run


def flash_attn_4():
    from flash_attn.cute import flash_attn_func

    def run(q, k, v, causal):
        out = flash_attn_func(q, k, v, causal=causal)
        return out[0] if isinstance(out, tuple) else out
    return run


def load(names, folder):
    """The named peers that can be imported, and for each of the others why it cannot."""
    makers = {"fa2": lambda: sdpa(SDPBackend.FLASH_ATTENTION), "cudnn": lambda: sdpa(SDPBackend.CUDNN_ATTENTION),
              "efficient": lambda: sdpa(SDPBackend.EFFICIENT_ATTENTION),  # takes fp32
              "flex": flex, "flash_attn2": flash_attn_2, "fa3": lambda: flash_attn_3(folder), "fa4": flash_attn_4}
    peers, missing = {}, {}
    for name in names:
        try:
            peers[name] = makers[name]()
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"[:200]
    return peers, missing
