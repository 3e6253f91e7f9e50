"""What the tests of exports share: a small run, trained in seconds until it knows the digits."""

from dataclasses import replace

from repopt.train.recipe import demo
from repopt.train.training import Job, train_run


def small_run(folder, *, method="repvgg", epochs=4, depths=(1, 1, 1, 1)):
    recipe = replace(demo(), epochs=epochs, warmup_epochs=1)
    options = {} if depths is None else {"depths": depths}
    job = Job(method=method, model="repopt_vgg_nano", data="digits", recipe=recipe, options=options)
    train_run(job, folder, device="cpu", quiet=True)
    return folder
