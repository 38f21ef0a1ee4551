from bench import readme


def test_the_figures_in_the_readme_are_the_records():
    text = readme.README.read_text(encoding="utf-8")
    assert readme._BEGIN in text
    assert readme.with_tables(text) == text


def test_table_by_hand():
    common = {"n": 1_000_000, "d": 64, "k": 64, "dtype": "float32"}
    records = [
        {**common, "engine": "cublas", "iter_ms": 1.118, "floor_ms": 0.06},
        {**common, "engine": "torch", "iter_ms": 1.808, "floor_ms": 0.06},
    ]
    assert readme.kmeans_table(records).splitlines()[2:] == ["| 1,000,000 | 64 | 64 | float32 | 0.06 | 1.12 | 1.81 |"]
