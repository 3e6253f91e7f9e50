"""What scales did in a search: their means over its epochs and by depth, stage by stage."""

from collections.abc import Mapping, Sequence

from repopt.train.records import Means


def stages(means: Means) -> list[list[str]]:
    """The operators by stage: one without identity starts a stage, as it changes the shape."""
    found: list[list[str]] = []
    for operator, branches in means.items():
        if not found or ("identity" not in branches and _any_identity(means)):
            found.append([])
        found[-1].append(operator)
    return found


def sampled_operator(means: Means) -> str:
    """The last operator with an identity of the longest stage: in a RepOpt-VGG, the last block of the third stage."""
    longest = max(stages(means), key=len)
    return [operator for operator in longest if "identity" in means[operator] or not _any_identity(means)][-1]


def searched_branches(means: Means) -> list[str]:
    """All branches, the identity last."""
    found = dict.fromkeys(branch for operator in means.values() for branch in operator)
    return sorted(found, key=lambda branch: branch == "identity")


def over_epochs(history: Mapping[int, Means], operator: str) -> dict[str, dict[int, float]]:
    """{branch: {epoch: mean of the operator's scales}}, for all branches of the model."""
    names = searched_branches(history[max(history)])
    own = {epoch: means.get(operator, {}) for epoch, means in history.items()}
    return {branch: {epoch: means[branch] for epoch, means in own.items() if branch in means} for branch in names}


def by_depth(means: Means) -> dict[str, list[dict[int, float]]]:
    """{branch: [{place of the operator: mean of its scales} for each stage]}, places counted from 1."""
    place = {operator: number for number, operator in enumerate(means, start=1)}

    def pieces(branch: str, members: Sequence[str]) -> dict[int, float]:
        return {place[operator]: means[operator][branch] for operator in members if branch in means[operator]}

    return {
        branch: [piece for members in stages(means) if (piece := pieces(branch, members))]
        for branch in searched_branches(means)
    }


def stage_starts(means: Means) -> list[int]:
    """The places of the stages' first operators."""
    sizes = [len(members) for members in stages(means)]
    return [1 + sum(sizes[:index]) for index in range(len(sizes))]


def _any_identity(means: Means) -> bool:
    return any("identity" in branches for branches in means.values())
