from tugline.cli.inprocess import LocalGateway as LocalGateway
from tugline.cli.inprocess import local_gateway as local_gateway
from tugline.rollout.client import Gateway as Gateway
from tugline.rollout.client import Session as Session
from tugline.rollout.client import open_gateway as open_gateway
from tugline.rollout.client import open_session as open_session

__version__: str
