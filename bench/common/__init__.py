"""What benchmarks share: records, timing, the roofline of the device, compiling ahead."""
