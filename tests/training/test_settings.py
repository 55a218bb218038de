"""Settings of trainers that earlier versions called otherwise."""

from clickexp.runs.hashing import config_hash, identity


def test_a_renamed_setting_leaves_hash_and_identity_of_a_run_as_they_were():
    """Else finished runs of a sweep would run again, and interrupted ones would not continue."""
    earlier, now = (
        {"trainer": {name: 16, "epochs": 3}} for name in ("steps", "steps_per_execution")
    )
    assert config_hash(now) == config_hash(earlier) and identity(now) == identity(earlier)
    assert config_hash({"trainer": {"steps_per_execution": 8, "epochs": 3}}) != config_hash(earlier)
