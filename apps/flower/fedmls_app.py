from fedmls.federation.flower_app import client_app, server_app

server = server_app()
client = client_app()
