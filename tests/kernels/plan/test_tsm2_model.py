"""The performance model of TSM2: worked by hand, against the paper's figures, and its properties."""

import dataclasses
import math

import numpy as np
import pytest
from exhaustive import every
from hypothesis import given
from hypothesis import strategies as st

from tsapps.kernels.gpu_specs import KNOWN, GpuSpec
from tsapps.kernels.plan import tsm2_model

N = 10_240  # the smallest size of the paper's experiments
# As the paper's section 4 gives them: float64 peak and bandwidth.
PAPER = {"K40c": (1430e9, 288e9), "M40": (213e9, 288e9), "P100": (4600e9, 720e9)}
# (t1, t2, t3) at w = 16.
PICKS = {"K40c": (128, 16, 4), "M40": (256, 8, 4), "P100": (128, 4, 4)}

# Round figures, to work by hand: latency 400 cycles is 400 ns; a multiprocessor has 10 GB/s and 8 Gflop/s.
ROUND = GpuSpec(
    name="round",
    compute_capability="0.0",
    multiprocessors=10,
    registers=65_536,
    shared_memory=49_152,
    shared_memory_per_block=49_152,
    max_threads=2048,
    clock_hz=1e9,
    bandwidth=100e9,
    l2=1 << 20,
    peaks=(("float32", 160e9), ("float64", 80e9)),
    memory_latency=400,
    compute_latency=(("float32", 5), ("float64", 10)),
)


def as_in_the_paper(name):
    peak, bandwidth = PAPER[name]
    return dataclasses.replace(KNOWN[name], peaks=(("float64", peak),), bandwidth=bandwidth)


class TestByHand:
    """ROUND, float64, w = 16, t1 = 128, t2 = 16, t3 = 1; then narrower, until each resource has been the scarce one."""

    def test_registers(self):
        # 16 + 2 · (3·16 + 2·1) = 116 of 32 bits; 16 + 50 = 66 in float32.
        assert tsm2_model.registers("float64", 16, 1) == 116
        assert tsm2_model.registers("float32", 16, 1) == 66

    def test_shared_memory(self):
        assert tsm2_model.shared_memory("float64", 16) == 128
        assert tsm2_model.shared_memory("float32", 16) == 64

    def test_occupancy(self):
        # Registers 65536 / 116 = 564.97; shared memory 49152 / 128 = 384 = 3 · 128.
        assert tsm2_model.occupancy(ROUND, "float64", 128, 16, 1) == 384
        assert tsm2_model.occupancy(ROUND, "float64", 256, 16, 1) == 256
        # t2 = 4, t3 = 4: 16 + 2 · 20 = 56 registers, 1170.3 threads; shared memory 1536. 9 · 128 = 1152.
        assert tsm2_model.occupancy(ROUND, "float64", 128, 4, 4) == 1152
        # t2 = t3 = 1: 16 + 2 · 5 = 26 registers, 2520 threads; the hardware holds 2048.
        assert tsm2_model.occupancy(ROUND, "float64", 128, 1, 1) == 2048

    def test_no_block_fits(self):
        # 512 threads · 128 bytes = 64 KiB.
        assert tsm2_model.occupancy(ROUND, "float64", 512, 16, 1) == 0
        assert tsm2_model.memory_seconds(ROUND, 9, 9, 16, "float64", 512, 16, 1) == math.inf
        with pytest.raises(ValueError, match="no block of t1=512, t2=16, t3=1 in float64 fits round"):
            tsm2_model.predict(ROUND, 9, 9, 16, "float64", 512, 16, 1)

    def test_memory_utilisation(self):
        # In flight: 384 · 1 · 8 = 3072 bytes. Needed: 400 ns · 10 GB/s = 4000.
        assert tsm2_model.memory_utilisation(ROUND, "float64", 128, 16, 1) == pytest.approx(0.768)
        assert tsm2_model.memory_utilisation(ROUND, "float64", 128, 16, 2) == 1

    def test_compute_utilisation(self):
        # Needed: 10 ns · 8 Gflop/s = 80 operations; one warp, where no more is held, has 32 · 1 · 1 in flight.
        scarce = dataclasses.replace(ROUND, max_threads=32)
        assert tsm2_model.compute_utilisation(scarce, "float64", 32, 1, 1) == pytest.approx(0.4)
        assert tsm2_model.compute_utilisation(scarce, "float64", 32, 1, 1, flops_per_fma=2) == pytest.approx(0.8)
        assert tsm2_model.compute_utilisation(ROUND, "float64", 128, 16, 1) == 1

    def test_threshold(self):
        # 80 Gflop/s · 8 bytes / 100 GB/s.
        assert tsm2_model.threshold(ROUND, "float64") == pytest.approx(6.4)
        assert tsm2_model.threshold(ROUND, "float64", flops_per_fma=2) == pytest.approx(3.2)

    def test_seconds(self):
        # m · k = 10^6. One pass of 8 MB at 76.8 GB/s: 104.17 µs. 16e6 multiply-adds at 80 G/s: 200 µs.
        sizes = (ROUND, 1000, 1000, 16, "float64", 128, 16, 1)
        assert tsm2_model.memory_seconds(*sizes) == pytest.approx(104.1667e-6, rel=1e-5)
        assert tsm2_model.compute_seconds(*sizes) == pytest.approx(200e-6)
        assert tsm2_model.compute_seconds(*sizes, flops_per_fma=2) == pytest.approx(400e-6)
        assert tsm2_model.predict(*sizes) == tsm2_model.Prediction(pytest.approx(200e-6), "compute")
        # t2 = 5 takes ⌈16/5⌉ = 4 passes: 320 µs at the full bandwidth.
        assert tsm2_model.predict(*sizes[:-3], 128, 5, 4) == tsm2_model.Prediction(pytest.approx(320e-6), "memory")

    def test_choose(self):
        # w = 4 < 6.4: one pass, t2 = 4. t3 = 1 takes 44 registers, 1489.5 threads: 46 warps have 11 776 bytes in
        # flight, more than 4000. Threads by blocks: 1408 of 128, 1280 of 256, 1024 of 512 or 1024.
        assert tsm2_model.choose(ROUND, 1000, 1000, 4, "float64") == (128, 4, 1)
        # t3 = 4 takes 56 registers, 1170.3 threads: 1152 of 128. t2 = t3 = 1 has 2048 by any; the largest block wins.
        assert tsm2_model.block_threads(ROUND, "float64", 4, 4) == 128
        assert tsm2_model.block_threads(ROUND, "float64", 1, 1) == 1024

    def test_floor(self):
        # A, B and C: 1e6 + 16e3 + 16e3 elements of 8 bytes at 100 GB/s, 82.56 µs; 32e6 flop at 80 G/s, 400 µs.
        assert tsm2_model.floor_seconds(ROUND, 1000, 1000, 16, "float64", "float64") == pytest.approx(400e-6)
        assert tsm2_model.floor_seconds(ROUND, 1000, 1000, 1, "float64", "float64") == pytest.approx(80.16e-6)
        assert tsm2_model.floor_seconds(KNOWN["H200"], N, N, 16, "float16", "float16") == pytest.approx(
            (N * N + 2 * 16 * N) * 2 / 4.8e12
        )


class TestAgainstThePaper:
    @pytest.mark.parametrize("device_of", [as_in_the_paper, KNOWN.get], ids=["paper", "data sheet"])
    @pytest.mark.parametrize(("name", "published"), [("K40c", 40), ("M40", 6), ("P100", 50)])
    def test_thresholds(self, device_of, name, published):
        """P·s/BW in float64 is 39.7, 5.9 and 51.1 (51.4 by the data sheet): to one digit, the paper's 40, 6 and 50.

        The peak P counts a fused multiply-add as two operations, and the work t2·t3 counts it as one. Counted alike,
        the arithmetic takes as long as reading A at half as many columns: 20, 3 and 25 (25.6 of the figures unrounded).
        """
        device = device_of(name)
        assert float(f"{tsm2_model.threshold(device, 'float64'):.0e}") == published
        physical = tsm2_model.threshold(device, "float64", flops_per_fma=2)
        assert physical == tsm2_model.threshold(device, "float64") / 2
        assert physical == pytest.approx(published / 2, rel=0.03)

    @pytest.mark.parametrize(("name", "bound"), [("K40c", "memory"), ("M40", "compute"), ("P100", "memory")])
    def test_what_bounds_w_16(self, name, bound):
        t1, t2, t3 = tsm2_model.choose(KNOWN[name], N, N, 16, "float64")
        assert tsm2_model.predict(KNOWN[name], N, N, 16, "float64", t1, t2, t3).bound == bound

    @pytest.mark.parametrize("w", [2, 4, 8, 16])
    def test_k40c_takes_all_columns_at_once(self, w):
        """t2 = w as in the paper. Its t3 = 4 is as fast as the least t3 that saturates the memory, which is chosen."""
        device = KNOWN["K40c"]
        t1, t2, t3 = tsm2_model.choose(device, N, N, w, "float64")
        assert (t2, t3) == (w, {2: 1, 4: 1, 8: 2, 16: 3}[w])
        assert tsm2_model.predict(device, N, N, w, "float64", t1, t2, t3) == tsm2_model.predict(
            device, N, N, w, "float64", 128, w, 4
        )

    def test_k40c_picks_of_the_paper_need_a_longer_latency(self):
        """t3 = 4 at w = 16 comes out of 358 to 476 cycles; measured, on an idle memory, are 331."""
        for cycles, t3 in ((331, 3), (357, 3), (358, 4), (476, 4), (477, 5)):
            device = dataclasses.replace(KNOWN["K40c"], memory_latency=cycles)
            assert tsm2_model.choose(device, N, N, 16, "float64") == (128, 16, t3)

    def test_m40_takes_eight_columns(self):
        """t2 = 8 as in the paper; its t3 = 4 and t1 = 256 are as fast, for one load a thread saturates the units."""
        device = KNOWN["M40"]
        assert tsm2_model.choose(device, N, N, 16, "float64") == (128, 8, 1)
        assert tsm2_model.predict(device, N, N, 16, "float64", 128, 8, 1) == tsm2_model.predict(
            device, N, N, 16, "float64", *PICKS["M40"]
        )

    def test_p100_does_not_take_four_columns(self):
        """Algorithm 5 as rebuilt reads A once, with t2 = 16: the paper's t2 = 4 is predicted four times as slow."""
        device = KNOWN["P100"]
        assert tsm2_model.choose(device, N, N, 16, "float64") == (256, 16, 2)
        ours = tsm2_model.predict(device, N, N, 16, "float64", 256, 16, 2)
        paper = tsm2_model.predict(device, N, N, 16, "float64", *PICKS["P100"])
        assert (ours.bound, paper.bound) == ("memory", "memory")
        assert paper.seconds == pytest.approx(4 * ours.seconds)

    @given(setup=st.integers(0, 100), latency=st.integers(1, 10_000))
    def test_no_constant_makes_p100_take_four_columns(self, setup, latency):
        device = dataclasses.replace(KNOWN["P100"], memory_latency=latency)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tsm2_model, "SETUP_REGISTERS", setup)
            assert tsm2_model.memory_seconds(device, N, N, 16, "float64", 32, 16, 4) < tsm2_model.memory_seconds(
                device, N, N, 16, "float64", 32, 4, 4
            )

    @pytest.mark.parametrize("name", PICKS)
    def test_block_threads_for_the_tiles_of_the_paper(self, name):
        t1, t2, t3 = PICKS[name]
        assert tsm2_model.block_threads(KNOWN[name], "float64", t2, t3) == t1

    def test_block_threads_on_the_k40c_for_other_widths(self):
        """The paper has 128 at every w. At w = 8 shared memory holds 768 threads, and 256 divides that as well."""
        t1 = {w: tsm2_model.block_threads(KNOWN["K40c"], "float64", w, 4) for w in (2, 4, 8, 16)}
        assert t1 == {2: 128, 4: 128, 8: 256, 16: 128}

    def test_the_calibration_of_c(self):
        def agrees(setup):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tsm2_model, "SETUP_REGISTERS", setup)
                return all(
                    tsm2_model.block_threads(KNOWN[name], "float64", *p[1:]) == p[0] for name, p in PICKS.items()
                )

        assert [setup for setup in range(65) if agrees(setup)] == [12, 13, 14, 15, 16]


class TestDescent:
    @pytest.mark.each_choice
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("device", every(4, KNOWN.values()), ids=KNOWN)
    def test_bound_by_memory_it_ends_beside_the_search(self, device, dtype):
        for w in range(1, min(32, int(tsm2_model.threshold(device, dtype))) + 1):
            _, t2, t3 = tsm2_model.choose(device, N, N, w, dtype)
            by_descent = tsm2_model.descend(device, w, dtype)
            assert by_descent[0] == t2
            assert abs(by_descent[1] - t3) <= 1

    def test_bound_by_arithmetic_it_stays_where_it_enters(self):
        """From t2* = 5.94 on, the gradient is zero; the paper's 8 is on this plateau, and descent does not find it."""
        assert tsm2_model.descend(KNOWN["M40"], 16, "float64") == (6, 1)
        assert tsm2_model.choose(KNOWN["M40"], N, N, 16, "float64")[1:] == (8, 1)

    def test_it_runs_past_the_registers_of_a_thread(self):
        t2, t3 = tsm2_model.descend(KNOWN["V100"], 64, "float64")
        assert tsm2_model.registers("float64", t2, t3) > tsm2_model.MAX_REGISTERS

    def test_the_faster_of_both_where_arithmetic_cannot_saturate(self):
        # Arithmetic of so long a latency that no tile keeps it busy: reading A more often costs less.
        slow = dataclasses.replace(ROUND, compute_latency=(("float64", 10**6),))
        assert tsm2_model.descend(slow, 16, "float64")[0] <= 6


sizes = st.integers(1, 10**6)
widths = st.integers(1, 64)
dtypes = st.sampled_from(["float32", "float64"])
devices = st.sampled_from([*KNOWN.values(), ROUND])
conventions = st.sampled_from([1, 2])
tiles = st.tuples(st.sampled_from(tsm2_model.BLOCKS[:2]), st.integers(1, 16), st.integers(1, tsm2_model.T3_MAX))


class TestProperties:
    @given(devices, sizes, sizes, widths, dtypes, tiles, conventions)
    def test_never_below_the_roofline_of_its_own_convention(self, device, m, k, w, dtype, tile, flops_per_fma):
        predicted = tsm2_model.predict(device, m, k, w, dtype, *tile, flops_per_fma=flops_per_fma).seconds
        below = 1 - 1e-12
        assert predicted >= below * m * k * np.dtype(dtype).itemsize / device.bandwidth
        assert predicted >= below * flops_per_fma * m * k * w / device.peak(dtype)

    @given(devices, sizes, sizes, widths, dtypes, tiles)
    def test_respects_the_floor_where_b_and_c_are_small(self, device, m, k, w, dtype, tile):
        predicted = tsm2_model.predict(device, m, k, w, dtype, *tile, flops_per_fma=2).seconds
        # The model leaves B and C out: k·w + m·w elements beside m·k.
        rest = 1 + w / m + w / k
        assert predicted * rest >= (1 - 1e-12) * tsm2_model.floor_seconds(device, m, k, w, dtype, dtype)

    @given(devices, sizes, sizes, widths, dtypes, tiles, st.integers(1, 1000))
    def test_grows_with_every_size(self, device, m, k, w, dtype, tile, more):
        before = tsm2_model.predict(device, m, k, w, dtype, *tile).seconds
        assert tsm2_model.predict(device, m + more, k, w, dtype, *tile).seconds > before
        assert tsm2_model.predict(device, m, k + more, w, dtype, *tile).seconds > before
        assert tsm2_model.predict(device, m, k, w + more, dtype, *tile).seconds >= before

    @given(devices, dtypes, tiles)
    def test_utilisations_are_parts(self, device, dtype, tile):
        assert 0 < tsm2_model.memory_utilisation(device, dtype, *tile) <= 1
        assert 0 < tsm2_model.compute_utilisation(device, dtype, *tile) <= 1
        assert tsm2_model.occupancy(device, dtype, *tile) % tile[0] == 0
        assert tsm2_model.occupancy(device, dtype, *tile) <= device.max_threads

    @given(devices, sizes, sizes, widths, dtypes, conventions)
    def test_a_choice_fits(self, device, m, k, w, dtype, flops_per_fma):
        t1, t2, t3 = tsm2_model.choose(device, m, k, w, dtype, flops_per_fma=flops_per_fma)
        assert t2 <= w
        assert tsm2_model.registers(dtype, t2, t3) <= tsm2_model.MAX_REGISTERS
        assert t1 * tsm2_model.shared_memory(dtype, t2) <= device.shared_memory_per_block
        assert tsm2_model.occupancy(device, dtype, t1, t2, t3) >= t1

    @given(devices, sizes, sizes, widths, dtypes, tiles)
    def test_no_tile_of_a_memory_bound_product_reads_faster_than_the_choice(self, device, m, k, w, dtype, tile):
        if w > tsm2_model.threshold(device, dtype) or tile[1] > w:
            return
        _, t2, t3 = tsm2_model.choose(device, m, k, w, dtype)
        chosen = tsm2_model.memory_seconds(device, m, k, w, dtype, 32, t2, t3)
        assert chosen <= tsm2_model.memory_seconds(device, m, k, w, dtype, 32, *tile[1:])

    @given(devices, widths, dtypes)
    def test_the_choice_is_of_the_shape_and_not_of_the_size(self, device, w, dtype):
        assert tsm2_model.choose(device, 1000, 1000, w, dtype) == tsm2_model.choose(device, 64_000, 32_000, w, dtype)


class TestErrors:
    @pytest.mark.parametrize("name", ["m", "k", "w", "t1", "t2", "t3"])
    def test_sizes(self, name):
        good = {"m": 8, "k": 8, "w": 2, "t1": 128, "t2": 2, "t3": 1}
        with pytest.raises(ValueError, match=f"{name} is 0; expected at least 1"):
            tsm2_model.predict(ROUND, dtype="float64", **(good | {name: 0}))
        with pytest.raises(TypeError, match=rf"{name} is 2\.5; expected an int"):
            tsm2_model.predict(ROUND, dtype="float64", **(good | {name: 2.5}))

    @pytest.mark.parametrize("dtype", ["float16", np.int32, "float128x", object()])
    def test_dtypes(self, dtype):
        with pytest.raises(ValueError, match="expected one of float64, float32"):
            tsm2_model.threshold(ROUND, dtype)

    def test_dtypes_of_numpy(self):
        assert (
            tsm2_model.threshold(ROUND, np.float64) == tsm2_model.threshold(ROUND, np.dtype("f8")) == pytest.approx(6.4)
        )

    def test_convention(self):
        with pytest.raises(ValueError, match="flops_per_fma is 3; expected 1"):
            tsm2_model.threshold(ROUND, "float64", flops_per_fma=3)

    def test_units(self):
        with pytest.raises(ValueError, match="round has no peak for unit 'tf32'"):
            tsm2_model.floor_seconds(ROUND, 8, 8, 8, "float32", "tf32")

    def test_a_device_on_which_nothing_fits(self):
        with pytest.raises(ValueError, match="no tile fits tiny"):
            tsm2_model.choose(dataclasses.replace(ROUND, name="tiny", registers=64), 8, 8, 8, "float64")
