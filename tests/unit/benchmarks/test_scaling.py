"""The tables of docs/scaling.md from figures that are easy to reckon with."""

from benchmarks.scaling import CLIENTS, limits_table, workers_table


def test_the_second_workers_share_is_the_ratio_of_the_rates() -> None:
    one = {"per_minute": 100.0, "search_s": 0.5, "connections": 3.0}
    two = {"per_minute": 180.0, "search_s": 0.6, "connections": 6.0}
    table = workers_table(one, two)
    assert "| jobs a minute | 100 | 180 |" in table
    assert "| of one worker | 1 | 1.80 |" in table


def test_workers_fill_the_database_when_their_claims_and_heartbeats_add_up_to_one() -> None:
    most = str(CLIENTS[-1])
    found = {"claims": {most: 200.0}, "heartbeats": {most: 800.0}}
    # a search of 1 s: 1 / 200 + 4 / 800 = 0.01 of the database: 64 workers 64 %, 100 workers all of it
    assert "| 1 s | 64 % | 100 |" in limits_table(found)
    # of 10 s: 0.1 / 200 + 4 / 800 = 0.0055: 64 workers 35 %, 182 workers all of it
    assert "| 10 s | 35 % | 182 |" in limits_table(found)
