import pytest

from sacristan.observers import DestinationError
from sacristan.observers.mongo import Destination, parse_mongo_option


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sacred", {"db_name": "sacred"}),
        ("host.example:27018", {"url": "mongodb://host.example:27018"}),
        ("127.0.0.1:27018:db", {"url": "mongodb://127.0.0.1:27018", "db_name": "db"}),
        ("db.coll", {"db_name": "db", "collection": "coll"}),
        ("db.coll:12!-3", {"db_name": "db", "collection": "coll", "overwrite": 12, "priority": -3}),
        ("h:1:db!5", {"url": "mongodb://h:1", "db_name": "db", "priority": 5}),
        ("mongodb://u:p@h:1/db?authSource=x", {"url": "mongodb://u:p@h:1/db?authSource=x", "db_name": "db"}),
        ("mongodb://h", {"url": "mongodb://h", "db_name": "sacred"}),
        ("mongodb+srv://u:p@cluster.example/db", {"url": "mongodb+srv://u:p@cluster.example/db", "db_name": "db"}),
    ],
)
def test_parse_mongo_option_takes_sacreds_forms_and_urls(text, expected):
    assert parse_mongo_option(text) == expected


@pytest.mark.parametrize("text", ["", "two words", "host:port:db", "db.coll:x"])
def test_parse_mongo_option_refuses_the_rest(text):
    with pytest.raises(DestinationError, match="expected db_name, host:port:db_name or mongodb://"):
        parse_mongo_option(text)


def test_client_waits_as_long_as_its_url_says_and_else_some_seconds():
    for query, waits in (
        ("", (2, 2)),
        ("?ServerSelectionTimeoutMS=150", (0.15, 2)),
        ("?connecttimeoutms=70", (2, 0.07)),
    ):
        with Destination(f"mongodb://127.0.0.1:9/x{query}", "x").connect(connect=False) as client:
            options = client.options
            assert (options.server_selection_timeout, options.pool_options.connect_timeout) == waits
