"""Deployments on this machine, and what deployments between machines are made with.

base       one Deployment: start everything, run a job, restart what dies, take everything down
nvflare    a deployment over NVFlare, with kits of nvflare_kits and an administrator's nvflare_session
flower     a deployment over Flower, with keys of certificates, whose processes flower_warm starts faster
processes  the processes of a deployment;  guard: ends them if their owner is killed;  restarts: when to give up
"""
