"""A model that comes with repopt: plan, initialize, attach, then the training loop you know.

Trains RepOpt-VGG-nano for a few steps on random images. Runs in seconds on a CPU.
"""

import torch
import torch.nn.functional as F

import repopt

torch.manual_seed(0)
model = repopt.create_model("repopt_vgg_nano", num_classes=4)
plan = repopt.plan(model, scales="ones")
plan.init_()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=4e-5)
repopt.attach(optimizer, plan)

labels = torch.randint(4, (64,))
images = torch.randn(64, 3, 32, 32) + labels.view(-1, 1, 1, 1)
for step in range(10):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")
