"""The picture of the search's growth is a picture."""

from xml.etree import ElementTree as ET

from benchmarks.growth import Panel, by_gpus, drawn

SVG = "{http://www.w3.org/2000/svg}"


def test_a_panel_has_a_point_for_every_measurement_higher_where_it_took_longer() -> None:
    picture = ET.fromstring(  # noqa: S314 - our own text
        drawn(
            [
                Panel("one", "GPUs", ((8.0, 0.1), (64.0, 1.0))),
                Panel("two", "layers", ((1.0, 0.2), (2.0, 0.2))),
            ]
        )
    )
    heights = [float(circle.attrib["cy"]) for circle in picture.iter(f"{SVG}circle")]
    assert len(heights) == 4
    assert heights[1] < heights[0]
    assert heights[2] == heights[3]
    assert {"one", "two"} <= {text.text for text in picture.iter(f"{SVG}text")}


def test_problems_grow_by_what_the_axis_says() -> None:
    assert [value == problem.cluster.num_gpus for value, problem in by_gpus()] == [True] * 8
