"""Pages on clusterings: what they compute beside scikit-learn, their pictures, and the HTML."""

import base64
import io
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.metrics import silhouette_samples

from tsapps import TSKMeans
from tsapps.apps.kmeans.data.rows import as_rows
from tsapps.apps.kmeans.report import pictures
from tsapps.apps.kmeans.report.facts import facts_of


def fitted(X, k=3):
    return TSKMeans(k, n_init=1, random_state=0, device="cpu").fit(X)


class Page(HTMLParser):
    """Checks that elements nest, and collects tags, texts and attributes."""

    VOID = ("meta", "img", "br", "hr", "link", "input")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts, self.addresses = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.texts.append(text)


def test_facts_beside_scikit_learn():
    X = load_iris().data
    model = fitted(X)
    facts = facts_of(as_rows(X), model.cluster_centers_, model.labels_, metric="euclidean", seed=0)
    np.testing.assert_array_equal(facts.sizes, np.bincount(model.labels_))
    np.testing.assert_allclose(facts.means, X.mean(axis=0))
    np.testing.assert_allclose(facts.deviations, X.std(axis=0))
    within = np.array([[X[model.labels_ == c, j].var() for j in range(4)] for c in range(3)])
    explained = 1 - (facts.sizes[:, None] * within).sum(axis=0) / 150 / X.var(axis=0)
    np.testing.assert_allclose(facts.separation, explained, atol=2e-3)  # centers are those of the last but one update
    np.testing.assert_allclose(facts.scores.of_sample, silhouette_samples(X, model.labels_), atol=1e-9)
    pca = PCA(2).fit(X)
    np.testing.assert_allclose(abs(facts.points), abs(pca.transform(X)), atol=1e-9)
    np.testing.assert_allclose(abs(facts.centers), abs(pca.transform(model.cluster_centers_)), atol=1e-9)
    np.testing.assert_allclose(facts.shares, pca.explained_variance_ratio_, rtol=1e-9)
    np.testing.assert_array_equal(facts.point_labels, model.labels_)


@pytest.mark.parametrize("shape", [(40, 1), (5, 30), (3, 3)], ids=str)
def test_projections_of_every_shape(shape, rng):
    X = rng.standard_normal(shape)
    model = fitted(X, 2)
    facts = facts_of(as_rows(X), model.cluster_centers_, model.labels_, metric="euclidean", seed=0)
    assert facts.points.shape == (len(X), 2)
    n = min(2, *shape)
    np.testing.assert_allclose(abs(facts.points[:, :n]), abs(PCA(n).fit_transform(X)), atol=1e-9)


def test_bars_by_hand():
    drawing = ElementTree.fromstring(pictures.sizes([10, 5, 0]))
    heights = [float(bar.get("height")) for bar in drawing.iter("rect")]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)
    assert heights[2] == 0
    assert next(drawing.iter("rect")).find("title").text == "cluster 0: 10 rows"
    texts = [text.text for text in ElementTree.fromstring(pictures.sizes([10, 5])).iter("text")]
    assert {"0", "1"} <= {*texts}
    assert "0.5" not in texts  # half a cluster


def test_curves_have_their_points():
    drawing = ElementTree.fromstring(pictures.curve("t", [(1, 5), (2, 3), (3, 4)], ("x", "y"), mark=2))
    (line,) = drawing.iter("polyline")
    places = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    assert places[0][0] < places[1][0] < places[2][0]
    assert places[1][1] > places[2][1] > places[0][1]  # downwards
    assert [dot.get("class") for dot in drawing.iter("circle")] == ["dot", "center c0", "dot"]


def test_images_hold_their_pixels():
    pixels = np.array([[0, 51], [102, 255]])
    url = pictures.image(pixels, 0, 255)
    found = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))
    assert np.asarray(found).tolist() == pixels.tolist()
    assert pictures.image(np.ones((8, 8)), 1, 1).startswith("data:image/png")


def test_a_page_is_whole_and_needs_no_network(tmp_path):
    frame = pd.DataFrame(load_iris().data, columns=["a", "<b>", "c & d", "größe"])
    model = fitted(frame)
    model.report(frame, tmp_path / "r.html")
    sizes = np.bincount(model.labels_)
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert page.addresses == []
    assert page.tags.count("svg") == 3
    assert "b" not in page.tags
    assert {"a", "<b>", "c & d", "größe", f"3, of {min(sizes)} to {max(sizes)} rows", "150 rows × 4 columns"} <= set(
        page.texts
    )


def test_centers_of_pixels_are_images(tmp_path):
    X = load_digits().data
    fitted(X, 10).report(X, tmp_path / "r.html")
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert page.tags.count("img") == 10
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)


@pytest.mark.parametrize("k", [1, 60])
def test_few_and_many_clusters(tmp_path, k, rng):
    X = rng.standard_normal((200, 3))
    fitted(X, k).report(X, tmp_path / "r.html")
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert page.tags.count("svg") == (2 if k == 1 else 3)
    assert any("The 30 largest of 60 clusters" in text for text in page.texts) == (k == 60)


def test_what_cannot_be_reported(tmp_path):
    X = load_iris().data
    with pytest.raises(NotFittedError):
        TSKMeans(3).report(X, tmp_path / "r.html")
    with pytest.raises(ValueError, match=r"X has shape \(10, 4\); expected that of the fit, \(150, 4\)"):
        fitted(X).report(X[:10], tmp_path / "r.html")
    with pytest.raises(OSError, match="no-such-directory"):
        fitted(X).report(X, tmp_path / "no-such-directory" / "r.html")
    assert list(tmp_path.iterdir()) == []
