"""Deployments on this machine, and what deployments between machines are made with.

nvflare    a deployment over NVFlare, with kits of nvflare_kits and an administrator's nvflare_session
flower     a deployment over Flower, with keys of certificates, whose processes flower_warm starts faster
processes  the processes of a deployment;  restarts: when to give up
"""
