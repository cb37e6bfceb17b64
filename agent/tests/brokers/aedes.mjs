// The broker aedes on a port of this machine, in memory.
// usage: node aedes.mjs AEDES_MODULE PORT      on standard input: `close` cuts every connection, `open` listens again
import { createServer } from 'node:net'
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

const [module, port] = process.argv.slice(2)
const { Aedes } = await import(pathToFileURL(module))
const broker = await Aedes.createBroker()
const sockets = new Set()
const server = createServer((socket) => {
  sockets.add(socket)
  socket.on('close', () => sockets.delete(socket))
  broker.handle(socket)
})
const listen = () => server.listen(Number(port), '127.0.0.1')
listen()
createInterface({ input: process.stdin })
  .on('line', (line) => {
    if (line === 'open') return listen()
    server.close()
    for (const socket of sockets) socket.destroy()
  })
  .on('close', () => process.exit())
