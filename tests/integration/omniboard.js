// Loaded before Omniboard, which listens on every address of the machine and has no option for one.
const {Server} = require('net');

const listen = Server.prototype.listen;

Server.prototype.listen = function (port, ...others) {
  return listen.call(this, Number(port), '127.0.0.1', ...others);
};
