"""What a server keeps of the products it has computed, in a process of its own, which reads the limits once."""

import os
import platform
import subprocess
import sys

import pytest
import torch
from specpilot.common.machine import CAPACITY, SHAPES

MOST = 4.0  # MiB that remain of hundreds of shapes; without a limit over 80

SCRIPT = """
import ctypes
import torch
from specpilot.common.machine import limit_memory

limit_memory()
from specpilot.infer.models.linear import PackedLinear


class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefg"] + [("used", ctypes.c_size_t)] + [
        (name, ctypes.c_size_t) for name in "hi"
    ]


mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info


def used(sizes):
    products = [PackedLinear(torch.zeros(size, 384)) for size in sizes]
    for product in products:
        for rows in (*range(1, 16), *range(16, 401, 16)):
            product(torch.zeros(rows, 384))
    products.clear()
    return mallinfo().used / 2**20


with torch.inference_mode():
    before = used(range(1024, 1032, 2))
    print(used(range(1032, 1048, 2)) - before)
"""


@pytest.mark.slow  # a process of its own computes some thousand products
@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not torch.backends.mkldnn.is_available(), reason="needs glibc and oneDNN"
)
def test_code_for_products_of_all_shapes_is_not_kept() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in SHAPES}
    grown = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert float(grown) < MOST, f"{grown} MiB; {CAPACITY} shapes are to be kept"
