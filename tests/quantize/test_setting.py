import pytest

from repopt.quantize import Int8
from repopt.quantize.setting import CALIBRATORS


@pytest.mark.parametrize("backend", CALIBRATORS)
def test_a_backends_default_is_one_of_its_own_calibrators(backend):
    for calibrator in CALIBRATORS[backend]:
        assert Int8(backend=backend, calibrator=calibrator).chosen == calibrator
    assert Int8(backend=backend).chosen == CALIBRATORS[backend][0]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"backend": "tpu"}, "there is no backend 'tpu': choose x86 or onnxruntime"),
        ({"calibrator": "percentile"}, "the backend x86 has no calibrator 'percentile'; it has histogram, minmax"),
        ({"weights": "row"}, "weights is 'channel' or 'tensor', not 'row'"),
        ({"images": 0}, "calibration needs at least one image, not 0"),
        ({"rounding": "up"}, "rounding is 'nearest' or 'gptq', not 'up'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        Int8(**fields)
