"""vwxyzjn/cleanrl cleanrl/ppo.py at fe8d8a03c41a (MIT): rollouts, then epochs over minibatches.

The loop of that file on a game of four numbers: no step for a whole rollout, then several on it.
"""

import random

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

num_steps, num_envs, num_iterations, update_epochs, minibatches = 16, 4, 3, 2, 2
learning_rate, gamma, gae_lambda, clip_coef = 2.5e-4, 0.99, 0.95, 0.2


def layer_init(layer, std=2**0.5):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(4, 16)),
            nn.Tanh(),
            layer_init(nn.Linear(16, 1), std=1.0),
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(4, 16)),
            nn.Tanh(),
            layer_init(nn.Linear(16, 2), std=0.01),
        )

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


class Game:
    def __init__(self):
        self.generator = np.random.default_rng(1)
        self.state = self.generator.normal(size=(num_envs, 4)).astype(np.float32)

    def step(self, action):
        reward = self.state.sum(1) * (action - 0.5)
        noise = self.generator.normal(size=self.state.shape)
        self.state = np.tanh(self.state + noise).astype(np.float32)
        return self.state, reward, self.generator.random(num_envs) < 0.1


random.seed(1)
np.random.seed(1)
torch.manual_seed(1)
torch.backends.cudnn.deterministic = True
envs, agent = Game(), Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=learning_rate, eps=1e-5)
obs = torch.zeros(num_steps, num_envs, 4)
actions, logprobs, rewards, dones, values = (
    torch.zeros(num_steps, num_envs) for _ in range(5)
)
next_obs, next_done = torch.Tensor(envs.state), torch.zeros(num_envs)
for iteration in range(1, num_iterations + 1):
    optimizer.param_groups[0]["lr"] = (
        1.0 - (iteration - 1.0) / num_iterations
    ) * learning_rate
    for step in range(num_steps):
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
        values[step], actions[step], logprobs[step] = value.flatten(), action, logprob
        state, reward, done = envs.step(action.numpy())
        rewards[step] = torch.tensor(reward).view(-1)
        next_obs, next_done = torch.Tensor(state), torch.Tensor(done)
    with torch.no_grad():
        next_value = agent.critic(next_obs).reshape(1, -1)
        advantages, last = torch.zeros_like(rewards), 0
        for t in reversed(range(num_steps)):
            following = next_value if t == num_steps - 1 else values[t + 1]
            alive = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
            delta = rewards[t] + gamma * following * alive - values[t]
            advantages[t] = last = delta + gamma * gae_lambda * alive * last
        returns = advantages + values
    b_obs, b_actions, b_logprobs = (
        obs.reshape(-1, 4),
        actions.reshape(-1),
        logprobs.reshape(-1),
    )
    b_advantages, b_returns = advantages.reshape(-1), returns.reshape(-1)
    b_inds = np.arange(num_steps * num_envs)
    for _ in range(update_epochs):
        np.random.shuffle(b_inds)
        for mb in np.split(b_inds, minibatches):
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                b_obs[mb], b_actions.long()[mb]
            )
            ratio = (newlogprob - b_logprobs[mb]).exp()
            mb_advantages = b_advantages[mb]
            mb_advantages = (mb_advantages - mb_advantages.mean()) / (
                mb_advantages.std() + 1e-8
            )
            clipped = -mb_advantages * torch.clamp(ratio, 1 - clip_coef, 1 + clip_coef)
            pg_loss = torch.max(-mb_advantages * ratio, clipped).mean()
            v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb]) ** 2).mean()
            loss = pg_loss - 0.01 * entropy.mean() + v_loss * 0.5
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    print(
        f"iteration {iteration} policy {pg_loss.item():.6f} value {v_loss.item():.6f}"
    )
