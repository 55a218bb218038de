"""Huge memory pages for large tables on the CPU: random rows then cost fewer page-table walks."""

import ctypes
import sys

import jax

from clickexp.types import Array

HUGE_PAGE = 1 << 21
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25  # of Linux; the second from 6.1 on


def use_huge_pages(array: Array) -> bool:
    """Asks Linux to back an array on the CPU with huge pages; False where it cannot or will not.

    Only advice: values and addresses stay, and so do they in the results of steps that the array is donated to.
    """
    if sys.platform != "linux" or jax.default_backend() != "cpu" or array.nbytes < 2 * HUGE_PAGE:
        return False
    array.block_until_ready()
    start = -(-array.unsafe_buffer_pointer() // HUGE_PAGE) * HUGE_PAGE
    whole = (array.unsafe_buffer_pointer() + array.nbytes - start) // HUGE_PAGE * HUGE_PAGE
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return madvise(start, whole, MADV_HUGEPAGE) == 0 and madvise(start, whole, MADV_COLLAPSE) == 0
