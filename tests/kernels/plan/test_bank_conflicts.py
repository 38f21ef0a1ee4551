"""The banks of shared memory that an operand's words are read from: by hand, and as operand.cuh itself reads them."""

from collections import defaultdict

import numpy as np
import pytest
from host_cuda import harness

from tsapps.kernels.plan.bank_conflicts import STRIDES, turns
from tsapps.kernels.plan.mma import ELEMENT, MmaPlan, instantiate
from tsapps.kernels.problem import ITEMSIZE, Layout, Problem


def test_by_hand():
    # Lines of 32 floats, rotated: ldmatrix, whose four matrices are a turn each, by one instruction.
    assert turns(4, True, 64, 32, False, 1) == 4.25
    # Lines of 33 floats begin a bank later each. Lanes t = 0 … 3 that read elements t apart meet those of the line
    # before in three of four banks: bank 3 is read in lines 0 … 3, in four turns. Eight apart, they meet nobody. The
    # element that is left is read by the first lane of each line, from eight banks.
    (one,), (two,) = ([turns(4, True, 64, 33, True, stride)] for stride in (1, 8))
    assert one == pytest.approx(4 * ((8 * 4 + 1) / 9 + 0.25))
    assert two == pytest.approx(4 * (1 + 0.25))


#: Along the depth or across it, outer, depth, packed: the lines that plans have, whole and ragged.
TILES = [
    (True, 64, 32, False),
    (True, 64, 16, False),
    (True, 32, 33, True),
    (True, 40, 20, False),
    (True, 16, 5, True),
    (True, 16, 2, True),
    (False, 64, 32, False),
    (False, 33, 64, True),
    (False, 24, 40, False),
    (False, 12, 48, False),
    (False, 8, 256, False),
]


def operand(dtype, along, outer, depth, packed, stride):
    unit = 16 if packed or (depth if along else outer) * ITEMSIZE[dtype] % 16 == 0 else ITEMSIZE[dtype]
    packed = "true" if packed else "false"
    along = "true" if along else "false"
    return f"tsm2::Operand<{ELEMENT[dtype]}, {along}, {outer}, {depth}, {unit}, {packed}, false, false, {stride}>"


def source(cases):
    """Entry points that write what each lane reads of a tile, and how many words that is."""
    entries = [
        f"""
namespace case_{i} {{
using O = {operand(*case)};
using D = tsm2::Depth<{case[3]}, O::kPerWord, {case[-1]}>;
extern "C" void run_{i}(unsigned char* tile, unsigned char* out, long long* words) {{
  *words = O::kMatrices ? 0 : D::kWords;
  cuda_host::launch(1, 32, 0, [=] {{
    for (int q = 0; q < D::kWords; q += 2) {{
      O::Word read[4];
      O::words<D, {-(-case[2] // 8)}>(read, tile, 0, 0, 0, q);
      memcpy(out + (q / 2 * 32 + threadIdx.x) * sizeof read, read, sizeof read);
    }}
  }});
}}
}}"""
        for i, case in enumerate(cases)
    ]
    return "\n".join(['#include "kernels/tsm2/operand.cuh"', *entries])


def counted(addresses, size):
    """Return the turns of one read, of the lanes' addresses in bytes."""
    banks = defaultdict(set)
    for address in addresses:
        for word in range(address // 4, address // 4 + max(1, size // 4)):
            banks[word % 32].add(word)
    return max(map(len, banks.values()), default=0)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_as_the_kernel_reads(dtype):
    size, cases = ITEMSIZE[dtype], [(dtype, *tile, stride) for tile in TILES for stride in STRIDES]
    library = harness.build(source(cases))
    seen = 0
    for i, (_, along, outer, depth, packed, stride) in enumerate(cases):
        # Every element of the tile is its own number; 0 is what was not read.
        tile = np.arange(1, outer * depth + 1).astype(np.uint16 if size == 2 else dtype)
        out, words = np.zeros((depth, 32, 4, max(4, size)), np.uint8), np.zeros(1, np.int64)
        library.call(f"run_{i}", tile, out, words)
        if words[0] == 0:  # ldmatrix
            assert turns(size, along, outer, depth, packed, stride) == 4.25
            continue
        seen += 1
        read = out.view(tile.dtype)[..., :2].astype(int)  # (pairs of words, lanes, words, halves)
        split = size == 2 and (not along or (depth * size) % 4 != 0)
        total = 0.0
        for word in range(int(words[0])):
            of_lanes = read[word // 2, :, 2 * (word % 2)]
            found = 0.0
            for half in range(2 if split else 1):
                found += counted([(n - 1) * size for n in of_lanes[:, half] if n], size) + 0.25
            total += max(found, 2.25 if size == 8 else 0)
        expected = turns(size, along, outer, depth, packed, stride)
        # The function counts one word for all of a stride's blocks, and others may meet in a bank more or less.
        assert expected == pytest.approx(4 * total / int(words[0]), rel=0.15), (along, outer, depth, packed, stride)
    assert seen > len(cases) / 2


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("along", "best"), [(True, {8: 4, 4: 8, 2: 4}), (False, {8: 4, 4: 8, 2: 8})])
def test_thirty_three_is_no_cliff(dtype, along, best):
    """Lines of 33 elements are read about as fast as lines of 32."""
    size = ITEMSIZE[dtype]
    layout = Layout(along, 33, size, 16)
    m, k, w = (10**6, 33, 16) if along else (33, 10**6, 33)
    problem = Problem(m, k, w, dtype, layout, Layout(not along if along else False, 16 if along else 33, size, 16))
    plan = MmaPlan(dtype, 64, 16, 33, keep_b=True) if along else MmaPlan(dtype, 33, 33, 64)
    made = instantiate(plan, problem)
    assert made.stride == best[size]
    ideal = {8: 8 + 1, 4: 4 + 1, 2: 8 + 2}[size]
    assert turns(size, along, made.tile_m, made.depth, made.a_packed, made.stride) <= 1.25 * ideal
