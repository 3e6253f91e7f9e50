import pytest

from repopt.plans.scales import Scales
from repopt.report.comparison import differing_fields, group_runs, mean_and_deviation, shared_fields
from repopt.report.figures import mean_curve
from repopt.train.records import read_run
from report.folders import RECIPE, three_methods, write_run


def labels(folders):
    return [group.label for group in group_runs(read_run(folder) for folder in folders)]


def test_runs_that_differ_in_the_seed_alone_stand_together(tmp_path):
    groups = group_runs(read_run(folder) for folder in reversed(three_methods(tmp_path)))
    assert [group.label for group in groups] == ["Hyper-Search", "SGD", "RepVGG", "RepOpt"]
    assert [[run.info.seed for run in group.runs] for group in groups] == [[0], [0, 1, 2], [0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({}, {"kernel": "paper"}, ["RepOpt, authors init", "RepOpt, paper init"]),
        ({"model": "a0"}, {"model": "b1"}, ["RepOpt, a0", "RepOpt, b1"]),
        ({"data": "digits"}, {"data": "fake"}, ["RepOpt, digits", "RepOpt, fake"]),
        ({"recipe": {"lr": 0.1}}, {"recipe": {"lr": 0.2}}, ["RepOpt (lr 0.1)", "RepOpt (lr 0.2)"]),
        ({"data_digest": "a"}, {"data_digest": "b"}, ["RepOpt (one)", "RepOpt (other)"]),
        ({"method": "sgd"}, {"method": "own"}, ["SGD", "own"]),
        ({"method": "sgd"}, {"kernel": "paper"}, ["SGD, authors init", "RepOpt, paper init"]),
    ],
)
def test_what_is_not_the_same_is_not_averaged_and_stands_in_the_label(tmp_path, one, other, expected):
    assert labels([write_run(tmp_path / "one", **one), write_run(tmp_path / "other", seed=1, **other)]) == expected


def test_runs_with_other_scales_or_a_trained_start_are_not_averaged(tmp_path):
    runs = [write_run(tmp_path / str(seed), seed=seed) for seed in range(3)]
    for run, scale in zip(runs, (1.0, 1.0, 2.0), strict=True):
        Scales({"conv": {"conv3x3": scale}}).save(run / "scales.safetensors")
    runs.append(write_run(tmp_path / "3", seed=3, weights="pretrained.safetensors"))
    groups = group_runs(map(read_run, runs))
    assert [[run.info.seed for run in group.runs] for group in groups] == [[0, 1], [2], [3]]
    (runs[0] / "scales.safetensors").write_text("x")
    with pytest.raises(ValueError, match=r"scales.safetensors' is damaged, or not a safetensors file"):
        group_runs(map(read_run, runs))


def test_runs_of_earlier_versions_stand_with_those_of_this_one(tmp_path):
    """Which gives the scales of a training that has none no learning rate."""
    runs = [write_run(tmp_path / str(lr), "sgd", seed=int(lr or 0), recipe={"scale_lr": lr}) for lr in (None, 1.0)]
    assert labels(runs) == ["SGD"]


def test_runs_of_one_seed_that_start_from_other_weights_are_compared(tmp_path):
    """A pretraining for each seed is one setting, on the other hand."""
    runs = [write_run(tmp_path / str(seed), seed=seed, weights=f"/runs/{seed}/model.safetensors") for seed in range(2)]
    assert labels(runs) == ["RepOpt"]
    same = [write_run(tmp_path / f"from-{name}", weights=f"/runs/{name}/model.safetensors") for name in ("x", "y")]
    assert labels(same) == ["RepOpt (weights x/model.safetensors)", "RepOpt (weights y/model.safetensors)"]


def test_no_two_groups_have_the_same_label(tmp_path):
    setups = {
        "a": {"scales": "depth", "recipe": {"lr": 0.05}},
        "b": {"scales": "ones", "recipe": {"lr": 0.05}},
        "c": {"scales": "depth", "recipe": {"lr": 0.2}},
        "d": {"scales": "depth", "recipe": {"lr": 0.2}, "branches": "acnet"},
    }
    runs = [write_run(tmp_path / name, **setup) for name, setup in setups.items()]
    Scales({"conv": {"conv3x3": 1.0}}).save(runs[1] / "scales.safetensors")
    assert labels(runs) == [
        "RepOpt (scales depth, lr 0.05)",
        "RepOpt (scales ones, lr 0.05)",
        "RepOpt (scales depth, lr 0.2, c)",
        "RepOpt (scales depth, lr 0.2, d)",
    ]


def test_folders_of_one_name_are_told_apart_by_their_paths(tmp_path):
    runs = [write_run(tmp_path / name / "run", data_digest=name) for name in "ab"]
    assert labels(runs) == [f"RepOpt ({run})" for run in runs]


def test_scales_that_are_given_and_learned_are_named(tmp_path):
    setups = {"depth": None, "ones": None, "learn": 0.1}
    runs = [write_run(tmp_path / s, scales=s, recipe={"freeze_at": at}) for s, at in setups.items()]
    for run in runs[:2]:
        Scales({"conv": {"conv3x3": float(len(run.name))}}).save(run / "scales.safetensors")
    assert labels(runs) == ["RepOpt (scales depth)", "RepOpt (scales ones)", "RepOpt (scales learn, freeze_at 0.1)"]


def test_what_most_have_in_common_is_not_in_their_labels(tmp_path):
    odd = write_run(tmp_path / "odd", "sgd", kernel="paper")
    assert labels([*three_methods(tmp_path), odd]) == [
        "Hyper-Search",
        "SGD, authors init",
        "SGD, paper init",
        "RepVGG",
        "RepOpt",
    ]


def test_means_are_over_finished_runs_where_there_are_any(tmp_path):
    done, going = write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1, epochs=3, finished=False)
    (mixed,), (alone,) = group_runs([read_run(done), read_run(going)]), group_runs([read_run(going)])
    assert [run.info.seed for run in mixed.counted] == [0]
    assert [run.info.seed for run in alone.counted] == [1]
    assert (mixed.seeds, alone.seeds) == ((1, 2), (1, 1))


def test_the_deviation_is_the_sample_s_and_one_value_has_none():
    assert mean_and_deviation([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert mean_and_deviation([1.0]) == (1.0, None)


def test_a_mean_curve_goes_where_all_curves_go():
    assert mean_curve([{1: 1.0, 2: 2.0, 3: 9.0}, {2: 4.0, 1: 3.0}]) == {1: 2.0, 2: 3.0}
    assert mean_curve([]) == {}


def test_fields_of_the_recipe_either_differ_or_are_shared_and_the_seed_is_neither(tmp_path):
    folders = [write_run(tmp_path / "a", recipe={"seed": 0}), write_run(tmp_path / "b", recipe={"seed": 1, "lr": 0.2})]
    groups = group_runs(read_run(folder) for folder in folders)
    assert differing_fields(groups) == {"lr": [0.1, 0.2]}
    assert shared_fields(groups) == {field: value for field, value in RECIPE.items() if field != "lr"}
