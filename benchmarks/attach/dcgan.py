"""pytorch/examples dcgan/main.py at 77f55b912142 (BSD-3-Clause): two networks, two optimizers.

The loop of that file: the discriminator's gradients are the sum of two backward passes.
"""

import torch
from torch import nn

torch.manual_seed(999)
nz, niter = 8, 2
netG = nn.Sequential(
    nn.ConvTranspose2d(nz, 16, 4, 1, 0, bias=False),
    nn.BatchNorm2d(16),
    nn.ReLU(True),
    nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
)
netD = nn.Sequential(
    nn.Conv2d(3, 16, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(16, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
    nn.Flatten(0),
)
print(netD)
criterion = nn.BCELoss()
fixed_noise = torch.randn(4, nz, 1, 1)
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
dataloader = torch.utils.data.DataLoader(
    torch.rand(32, 3, 8, 8) * 2 - 1, 8, shuffle=True
)
for epoch in range(niter):
    for i, real in enumerate(dataloader):
        netD.zero_grad()
        label = torch.full((len(real),), 1.0)
        output = netD(real)
        errD_real = criterion(output, label)
        errD_real.backward()
        D_x = output.mean().item()
        fake = netG(torch.randn(len(real), nz, 1, 1))
        label.fill_(0.0)
        output = netD(fake.detach())
        errD_fake = criterion(output, label)
        errD_fake.backward()
        errD = errD_real + errD_fake
        optimizerD.step()

        netG.zero_grad()
        label.fill_(1.0)
        output = netD(fake)
        errG = criterion(output, label)
        errG.backward()
        optimizerG.step()
        print(
            f"[{epoch}/{niter}][{i}/{len(dataloader)}] Loss_D: {errD.item():.4f} "
            f"Loss_G: {errG.item():.4f} D(x): {D_x:.4f} D(G(z)): {output.mean().item():.4f}"
        )
        if i % 100 == 0:
            torch.save(netG(fixed_noise).detach(), f"fake_samples_epoch_{epoch:03d}.pt")
    torch.save(netG.state_dict(), f"netG_epoch_{epoch}.pt")
    torch.save(netD.state_dict(), f"netD_epoch_{epoch}.pt")
